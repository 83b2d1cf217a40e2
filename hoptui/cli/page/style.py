"""How the HTML page looks: one style sheet, light or dark as the reader's system is, and for paper."""

CSS = """
:root { color-scheme: light dark; --paper: #ffffff; --card: #f5f6f7; --ink: #1d1f21; --dim: #62666a; --rule: #d8dadd;
  --accent: #005faf; --area: #005faf26; --mark: #af5f00; --span: #00875f; --warning: #875f00; --alarm: #870000; }
@media (prefers-color-scheme: dark) { :root { --paper: #121212; --card: #1c1c1c; --ink: #dadada; --dim: #9a9a9a;
  --rule: #3a3a3a; --accent: #5fafff; --area: #5fafff30; --mark: #ffaf5f; --span: #5fd7af; --warning: #ffaf00; --alarm: #ff875f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 3rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { margin: 0 0 .4rem; font-size: 1.9rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 2.6rem 0 .8rem; padding-bottom: .3rem; border-bottom: 1px solid var(--rule); font-size: 1.2rem; }
p { margin: .7rem 0; max-width: 52rem; }
.lead { font-size: 1.08rem; }
.faint, footer { color: var(--dim); font-size: .87rem; }
footer { margin-top: 3rem; padding-top: .8rem; border-top: 1px solid var(--rule); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .8rem; margin: 1.4rem 0; }
.figure { padding: .8rem 1rem; border-radius: .5rem; background: var(--card); }
.figure b { display: block; font-size: 1.5rem; line-height: 1.35; font-variant-numeric: tabular-nums; }
.figure span { display: block; color: var(--dim); font-size: .87rem; }
.wide { overflow-x: auto; margin: .9rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .32rem 1.1rem .32rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--rule); }
th { color: var(--dim); font-weight: 500; font-size: .87rem; white-space: nowrap; }
td { overflow-wrap: break-word; }
td.number, th.number { text-align: right; white-space: nowrap; }
table.facts { width: 100%; }
table.facts th { width: 9rem; font-size: inherit; }
table.facts td { overflow-wrap: anywhere; }
table.shares { width: 100%; }
table.shares td.name { white-space: nowrap; }
table.shares td.track { width: 34%; min-width: 8rem; vertical-align: middle; }
.bar { display: block; height: .8rem; min-width: 1px; border-radius: .2rem; background: var(--accent); }
.warning { color: var(--warning); font-weight: 600; }
.alarm { color: var(--alarm); font-weight: 600; }
figure { margin: 1rem 0; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 38rem; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
svg text { fill: var(--dim); }
svg .title { fill: var(--ink); font-weight: 600; }
svg .grid { stroke: var(--rule); }
svg .area { fill: var(--area); }
svg .mean { fill: none; stroke: var(--accent); stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
svg .mark line { stroke: var(--mark); stroke-dasharray: 3 3; }
svg .mark circle { fill: var(--mark); }
svg .mark text { fill: var(--paper); font-weight: 700; text-anchor: middle; font-size: 11px; }
svg .note { fill: var(--warning); }
svg .span { fill: var(--span); }
svg .span + text { fill: var(--span); text-anchor: middle; }
@media print { body { max-width: none; padding: 0; } h2, tr, figure, .figure { break-inside: avoid; } h2 { break-after: avoid; } }
""".strip()
