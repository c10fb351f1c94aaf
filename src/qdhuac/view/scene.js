// The 3-D scene. Robots stay in place, side by side, and the floor moves under them. As in MuJoCo, z points up.
import {
  BoxGeometry, CanvasTexture, CapsuleGeometry, Color, CylinderGeometry, DirectionalLight, Fog, Group, HemisphereLight,
  Mesh, MeshStandardMaterial, OrbitControls, PCFShadowMap, PerspectiveCamera, PlaneGeometry, Quaternion, RepeatWrapping,
  Scene, SphereGeometry, SRGBColorSpace, WebGLRenderer,
} from "./three.js";

const GAP = 2, TILE = 1, FLOOR = 60, SKY = "#e9eef4"; // in metres; a tile is two squares wide
const ROBOT = { left: "#e8793a", right: "#3f83c9" }; // the colours of the two sides on the page

const upright = (geometry) => geometry.rotateX(Math.PI / 2); // three.js draws capsules and cylinders along y
const GEOMETRIES = {
  sphere: ([r]) => new SphereGeometry(r, 32, 24),
  ellipsoid: ([x, y, z]) => new SphereGeometry(1, 32, 24).scale(x, y, z),
  capsule: ([r, half]) => upright(new CapsuleGeometry(r, 2 * half, 12, 24)),
  cylinder: ([r, half]) => upright(new CylinderGeometry(r, r, 2 * half, 32)),
  box: ([x, y, z]) => new BoxGeometry(2 * x, 2 * y, 2 * z),
};

function checkerboard() {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 64;
  const pen = canvas.getContext("2d");
  for (const [x, y, colour] of [[0, 0, "#cfd8e1"], [32, 0, "#dde4eb"], [0, 32, "#dde4eb"], [32, 32, "#cfd8e1"]]) {
    pen.fillStyle = colour;
    pen.fillRect(x, y, 32, 32);
  }
  const texture = new CanvasTexture(canvas);
  texture.wrapS = texture.wrapT = RepeatWrapping;
  texture.repeat.set(FLOOR / TILE, FLOOR / TILE);
  texture.colorSpace = SRGBColorSpace;
  texture.anisotropy = 8;
  return texture;
}

export class Stage {
  // `shapes`: the geoms of the robot, as scene.py returns them.
  constructor(place, shapes) {
    this.place = place;
    this.shapes = shapes;
    this.geometries = shapes.map((s) => GEOMETRIES[s.shape](s.size));
    this.robots = {};
    this.renderer = new WebGLRenderer({ antialias: true });
    this.renderer.shadowMap.enabled = true;
    this.renderer.shadowMap.type = PCFShadowMap;
    place.append(this.renderer.domElement);
    this.scene = new Scene();
    this.scene.background = new Color(SKY);
    this.scene.fog = new Fog(SKY, 8, 28);
    this.scene.add(new HemisphereLight("#ffffff", "#b8c2cc", 1.6));
    const sun = new DirectionalLight("#ffffff", 2.2);
    sun.position.set(2, -3, 6);
    sun.castShadow = true;
    sun.shadow.mapSize.set(2048, 2048);
    Object.assign(sun.shadow.camera, { left: -4, right: 4, top: 4, bottom: -4 });
    this.scene.add(sun);
    this.tiles = checkerboard();
    const floor = new Mesh(new PlaneGeometry(FLOOR, FLOOR), new MeshStandardMaterial({ map: this.tiles, roughness: 1 }));
    floor.receiveShadow = true;
    this.scene.add(floor);
    this.camera = new PerspectiveCamera(40, 1, 0.05, 100);
    this.camera.up.set(0, 0, 1);
    this.camera.position.set(1.4, -4.2, 1.5);
    this.controls = new OrbitControls(this.camera, this.renderer.domElement);
    this.controls.target.set(0, 0, 0.6);
    this.controls.maxPolarAngle = 1.55; // stay above the floor
    this.controls.maxDistance = 20;
    new ResizeObserver(() => this.resize()).observe(place);
    this.resize();
    this.renderer.setAnimationLoop((now) => this.draw(now / 1000));
  }

  // `poses`: a Float32Array [frames, geoms, 7]; `dt`: seconds per frame.
  show(side, poses, dt) {
    this.hide(side);
    const group = new Group();
    for (const [i, shape] of this.shapes.entries()) {
      const own = new Color().setRGB(...shape.colour, SRGBColorSpace);
      const material = new MeshStandardMaterial({ color: own.lerp(new Color(ROBOT[side]), 0.75), roughness: 0.55 });
      const mesh = new Mesh(this.geometries[i], material);
      mesh.castShadow = mesh.receiveShadow = true;
      group.add(mesh);
    }
    this.scene.add(group);
    this.robots[side] = { group, poses, dt, frames: poses.length / (7 * this.shapes.length) };
    this.began = null; // restart both robots together
  }

  hide(side) {
    if (!this.robots[side]) return;
    this.scene.remove(this.robots[side].group);
    for (const mesh of this.robots[side].group.children) mesh.material.dispose();
    delete this.robots[side];
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.place;
    if (!width || !height) return;
    this.renderer.setPixelRatio(Math.min(window.devicePixelRatio, 2));
    this.renderer.setSize(width, height, false);
    this.camera.aspect = width / height;
    this.camera.updateProjectionMatrix();
  }

  draw(now) {
    this.began ??= now;
    const sides = Object.keys(this.robots), both = sides.length > 1;
    for (const [n, side] of sides.entries()) {
      const torso = this.pose(this.robots[side], now - this.began);
      const apart = both ? (side === "left" ? -GAP : GAP) / 2 : 0;
      this.robots[side].group.position.set(-torso.x, apart - torso.y, 0);
      if (n === 0) this.tiles.offset.set((torso.x / TILE) % 1, (torso.y / TILE) % 1);
    }
    this.controls.update();
    this.renderer.render(this.scene, this.camera);
  }

  // Moves a robot to a time of its episode, which repeats, interpolating between frames. Returns the position of the
  // first geom.
  pose({ group, poses, dt, frames }, time) {
    const at = frames > 1 ? (time / dt) % (frames - 1) : 0;
    const from = Math.floor(at), share = at - from, count = this.shapes.length, next = Math.min(from + 1, frames - 1);
    const turned = new Quaternion();
    group.children.forEach((mesh, i) => {
      const a = 7 * (from * count + i), b = 7 * (next * count + i);
      mesh.position.fromArray(poses, a).multiplyScalar(1 - share);
      mesh.position.x += share * poses[b];
      mesh.position.y += share * poses[b + 1];
      mesh.position.z += share * poses[b + 2];
      mesh.quaternion.fromArray(poses, a + 3).slerp(turned.fromArray(poses, b + 3), share);
    });
    return group.children[0].position;
  }
}
