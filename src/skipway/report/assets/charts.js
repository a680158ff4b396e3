// Draws each chart with plotly, one after the other so that the page stays at hand, in the page's own colours.
(() => {
  "use strict";
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const CURVES = 8;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const faded = (hex, alpha) => `rgba(${[1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16)).join(",")},${alpha})`;

  function curves(chart) {
    const traces = [];
    chart.series.forEach((series, k) => {
      const ink = colour(`--c${k % CURVES}`);
      if (series.low) {
        const edge = { x: series.x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: `s${k}` };
        traces.push({ ...edge, y: series.low }, { ...edge, y: series.high, fill: "tonexty", fillcolor: faded(ink, .18) });
      }
      traces.push({
        x: series.x, y: series.y, name: series.name, text: series.labels, legendgroup: `s${k}`,
        mode: series.y.length < 60 && !series.low ? "lines+markers" : "lines",
        line: { color: ink, width: 2, dash: DASHES[Math.floor(k / CURVES) % DASHES.length] }, marker: { size: 5, color: ink },
        hovertemplate: `${series.labels ? "%{text}<br>" : ""}%{y:.3g}${chart.unit ? ` ${chart.unit}` : ""}<extra>${series.name}</extra>`,
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

  // Over two powers of ten and more, a mark at each; else plotly finds better ones.
  function tenfold(values) {
    const known = values.filter((v) => v !== null);
    return Math.max(...known) / Math.min(...known) > 100 ? Math.ceil(Math.log10(Math.max(...known) / Math.min(...known)) / 8) : undefined;
  }

  function layout(chart, width) {
    const many = chart.kind === "lines" && chart.series.length > 1;
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", width, height: chart.height,
      font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif", size: 13, color: colour("--soft") },
      margin: { l: 8, r: 12, t: 8, b: 8 }, showlegend: many, hovermode: "closest", dragmode: false,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: colour("--ink") } },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
      xaxis: axis({ title: { text: chart.x, standoff: 8, font: { size: 13 } }, type: chart.log_x ? "log" : undefined }),
      yaxis: axis({
        title: chart.unit ? { text: chart.unit, standoff: 8, font: { size: 13 } } : undefined, type: chart.log ? "log" : undefined,
        exponentformat: "power", dtick: chart.log ? tenfold(chart.series.flatMap((s) => s.y)) : undefined, autorange: chart.kind === "heatmap" ? "reversed" : true,
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
