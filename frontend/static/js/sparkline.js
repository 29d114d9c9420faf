// Two-layer memory sparkline on a canvas: runtime below, calls above; step-hold, shared time axis, own height scale.

/** Draw points [[t_us, runtime, calls]] over [fromUs, toUs]. Colours are read once by the caller (see sparkColours). */
export function drawSparkline(canvas, points, fromUs, toUs, peakBytes, colours) {
  const ratio = Math.min(devicePixelRatio || 1, 2);
  const width = canvas.clientWidth || 150, height = canvas.clientHeight || 26;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d", { alpha: false });
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = colours.card;
  context.fillRect(0, 0, width, height);
  context.fillStyle = colours.grid;
  context.fillRect(0, height - 1, width, 1);
  if (!points.length) return;
  let top = 1;
  for (const point of points) top = Math.max(top, point[1] + point[2]);
  const scale = (height - 2) / top;
  const x = (t) => Math.max(0, Math.min(width, (t - fromUs) / (toUs - fromUs) * width));
  layer(context, points, x, toUs, height, scale, true, colours.calls);
  layer(context, points, x, toUs, height, scale, false, colours.runtime);
}

// The upper layer is drawn first and full height, the lower one over it: no seams between them.
function layer(context, points, x, toUs, height, scale, both, colour) {
  context.beginPath();
  let open = false;
  for (let i = 0; i < points.length; i++) {
    const [t, runtime, calls] = points[i];
    const y = height - 1 - (both ? runtime + calls : runtime) * scale;
    if (!open) { context.moveTo(x(t), height - 1); open = true; }
    context.lineTo(x(t), y);
    context.lineTo(i + 1 < points.length ? x(points[i + 1][0]) : x(toUs), y);
  }
  context.lineTo(x(toUs), height - 1);
  context.closePath();
  context.fillStyle = colour;
  context.fill();
}

export function sparkColours() {
  const style = getComputedStyle(document.documentElement);
  return { runtime: style.getPropertyValue("--runtime").trim(), calls: style.getPropertyValue("--c-tests").trim(), grid: style.getPropertyValue("--grid").trim(), card: style.getPropertyValue("--card").trim() };
}
