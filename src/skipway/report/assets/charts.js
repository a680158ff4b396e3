// Draws each chart with plotly, one after the other so that the page stays at hand, in the page's own colours.
(() => {
  "use strict";
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const CURVES = 8;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const faded = (hex, alpha) => `rgba(${[1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16)).join(",")},${alpha})`;

  // One name has one colour on the whole page.
  const numbers = new Map();
  function number(name) {
    if (!numbers.has(name)) numbers.set(name, numbers.size);
    return numbers.get(name);
  }

  function curves(chart) {
    const traces = [];
    chart.series.forEach((series) => {
      const k = number(series.name);
      const ink = colour(`--c${k % CURVES}`);
      if (series.low) {
        const edge = { x: series.x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: `s${k}` };
        traces.push({ ...edge, y: series.low }, { ...edge, y: series.high, fill: "tonexty", fillcolor: faded(ink, .18) });
      }
      traces.push({
        x: series.x, y: series.y, name: series.name, text: series.labels, legendgroup: `s${k}`,
        mode: series.y.length < 60 && !series.low ? "lines+markers" : "lines",
        line: { color: ink, width: 2, dash: DASHES[Math.floor(k / CURVES) % DASHES.length] }, marker: { size: 5, color: ink },
        hovertemplate: `%{fullData.name}: <b>%{y:.3g}${chart.unit ? ` ${chart.unit}` : ""}</b>${series.labels ? "  %{text}" : ""}<extra></extra>`,
      });
    });
    return traces;
  }

  function heat(chart) {
    return [{
      type: "heatmap", z: chart.values, y: chart.rows, colorscale: [[0, colour("--card")], [1, colour("--c0")]],
      hovertemplate: "%{y}, %{x}: %{z:.3g}<extra></extra>", colorbar: { thickness: 12, outlinewidth: 0 },
    }];
  }

  function axis(more) {
    return { gridcolor: colour("--line"), linecolor: colour("--line"), zeroline: false, automargin: true, ticks: "outside", tickcolor: colour("--line"), ...more };
  }

  // Marks of a logarithmic axis: powers of ten over three decades and more, else also twice and five times each;
  // over less than a doubling plotly finds better ones.
  function marks(values) {
    const known = values.filter((v) => v !== null && v !== undefined);
    const low = Math.log10(Math.min(...known)), high = Math.log10(Math.max(...known));
    if (!known.length || high - low < .3) return {};
    const step = Math.ceil((high - low) / 8), factors = high - low < 3 ? [1, 2, 5] : [1];
    const tickvals = [], ticktext = [];
    for (let k = Math.floor(low); k <= Math.ceil(high); k += step) {
      for (const factor of factors) {
        tickvals.push(factor * 10 ** k);
        const power = k < -4 || k > 4;
        ticktext.push(power ? `${factor === 1 ? "" : `${factor}·`}10<sup>${k}</sup>` : String(+(factor * 10 ** k).toPrecision(1)));
      }
    }
    return { tickvals, ticktext };
  }
  const values = (chart) => chart.series.flatMap((s) => [...s.y, ...(s.low || []), ...(s.high || [])]);

  function layout(chart, width) {
    const many = chart.kind === "lines" && chart.series.length > 1;
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", width, height: chart.height,
      font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif", size: 13, color: colour("--soft") },
      margin: { l: 8, r: 12, t: 8, b: 8 }, showlegend: many, hovermode: chart.kind === "lines" ? "x unified" : "closest", dragmode: false,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: colour("--ink") } },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
      xaxis: axis({ title: { text: chart.x, standoff: 8, font: { size: 13 } }, ...(chart.log_x ? { type: "log", ...marks(chart.series.flatMap((s) => s.x)) } : {}) }),
      yaxis: axis({
        title: chart.unit ? { text: chart.unit, standoff: 8, font: { size: 13 } } : undefined, exponentformat: "power",
        ...(chart.log ? { type: "log", ...marks(values(chart)) } : {}), autorange: chart.kind === "heatmap" ? "reversed" : true,
      }),
    };
  }

  const charts = [...document.querySelectorAll(".chart")].map((element) => ({
    element, chart: JSON.parse(element.parentElement.querySelector("script.data").textContent),
  }));
  const draw = ({ element, chart }, width) => {
    chart.height = element.clientHeight || 300;
    Plotly.react(element, chart.kind === "lines" ? curves(chart) : heat(chart), layout(chart, width || element.clientWidth), { displayModeBar: false });
  };
  const drawAll = (width) => charts.forEach((entry) => draw(entry, width));
  const next = (k) => {
    if (k === charts.length) { performance.mark("charts"); return; }
    draw(charts[k]);
    setTimeout(next, 0, k + 1);
  };
  next(0);
  document.addEventListener("recoloured", () => drawAll());
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 120); });
  // Paper is 180 mm wide or so; charts are drawn again for it, in light colours.
  matchMedia("print").addEventListener("change", (event) => drawAll(event.matches ? 660 : undefined));
})();
