// From a picture to the input of a model, by the rule that its manifest carries.

import { resize } from "./resample.mjs";

/** Python rounds halves to the even neighbour. */
const rounded = (x) => (Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));

function box(picture, width, height, rule) {
  const factor = Math.min(picture.height / height, picture.width / width) * rule.crop;
  const [w, h] = [width * factor, height * factor];
  const [left, top] = [(picture.width - w) / 2, (picture.height - h) / 2];
  const region = [
    Math.max(left, 0),
    Math.max(top, 0),
    Math.min(left + w, picture.width),
    Math.min(top + h, picture.height),
  ];
  return resize(picture, width, height, rule.interpolation, region);
}

const enlarged = (side, rule) => Math.floor(side / rule.crop + 1e-6);

function centre({ width, data, height }, toWidth, toHeight) {
  const [left, top] = [rounded((width - toWidth) / 2), rounded((height - toHeight) / 2)];
  const out = new Uint8Array(toWidth * toHeight * 3);
  for (let y = 0; y < toHeight; y += 1) {
    const start = ((top + y) * width + left) * 3;
    out.set(data.subarray(start, start + toWidth * 3), y * toWidth * 3);
  }
  return { width: toWidth, height: toHeight, data: out };
}

function centerCrop(picture, width, height, rule) {
  const [innerWidth, innerHeight] = [enlarged(width, rule), enlarged(height, rule)];
  let [w, h] = [innerWidth, innerHeight];
  if (innerWidth === innerHeight) {
    const [short, long] = [picture.height, picture.width].sort((a, b) => a - b);
    const longer = Math.trunc((innerHeight * long) / short);
    [h, w] = picture.height <= picture.width ? [innerHeight, longer] : [longer, innerHeight];
  } else {
    const ratio = Math.min(picture.height / innerHeight, picture.width / innerWidth);
    [w, h] = [rounded(picture.width / ratio), rounded(picture.height / ratio)];
  }
  return centre(resize(picture, w, h, rule.interpolation), width, height);
}

function squash(picture, width, height, rule) {
  const wide = resize(picture, enlarged(width, rule), enlarged(height, rule), rule.interpolation);
  return centre(wide, width, height);
}

const FITS = { box, "center-crop": centerCrop, squash };

/** Luminance in all three channels, for models that read one. */
function grey({ width, height, data }) {
  const out = new Uint8Array(data.length);
  for (let i = 0; i < data.length; i += 3) {
    const sum = 19595 * data[i] + 38470 * data[i + 1] + 7471 * data[i + 2] + 32768;
    out.fill(sum >> 16, i, i + 3);
  }
  return { width, height, data: out };
}

/**
 * @param {{width: number, height: number, data: Uint8Array}} picture [height, width, 3] bytes.
 * @param {object} manifest of the export.
 * @returns {{shape: number[], values: Float32Array}} [1, C, H, W].
 */
export function prepare(picture, manifest) {
  const rule = manifest.preprocess;
  const [height, width] = manifest.resolution ?? manifest.native_resolution;
  const { channels } = manifest.input_layout;
  const seen = FITS[rule.fit](channels === 1 ? grey(picture) : picture, width, height, rule);
  const values = new Float32Array(channels * height * width);
  const { fround } = Math;
  for (let c = 0; c < channels; c += 1) {
    const read = rule.color_order === "BGR" ? 2 - c : c;
    const [mean, std, scale] = [fround(rule.mean[c]), fround(rule.std[c]), fround(rule.scale)];
    for (let i = 0; i < height * width; i += 1) {
      const scaled = fround(seen.data[i * 3 + read] * scale);
      values[c * height * width + i] = fround(fround(scaled - mean) / std);
    }
  }
  return { shape: [1, channels, height, width], values };
}

/** The bytes of a picture without colour conversion; transparency is dropped. */
export async function decode(blob) {
  const bitmap = await createImageBitmap(blob, {
    colorSpaceConversion: "none",
    premultiplyAlpha: "none",
  });
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
  const rgb = new Uint8Array(bitmap.width * bitmap.height * 3);
  for (let i = 0, j = 0; i < data.length; i += 4, j += 3) {
    rgb[j] = data[i];
    rgb[j + 1] = data[i + 1];
    rgb[j + 2] = data[i + 2];
  }
  return { width: bitmap.width, height: bitmap.height, data: rgb };
}
