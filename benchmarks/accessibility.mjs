// Checks HTML pages: by axe (WCAG 2.2 A and AA), by pressing Tab, for pictures without a text, and for text that is too
// wide. Each page is shown in light and in dark colours, 1280 and 390 px wide.
//
//     apt-get install chromium
//     mkdir /tmp/axe && cd /tmp/axe && npm install axe-core playwright-core
//     node CHECKOUT/benchmarks/accessibility.mjs PAGE.html ...        (CHROMIUM=/path/to/chromium if it is elsewhere)
//
// Prints a line for each finding and each page. Exit code 1 if there is a finding.
import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(join(process.cwd(), "package.json"));
const axe = require("axe-core");
const { chromium } = require("playwright-core");
const TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex='0']";
const MOST_TABS = 3000;

// These functions run in the page.
const axeFindings = async (tags) =>
  (await axe.run({ runOnly: tags })).violations.map(
    (one) => `${one.id} (${one.nodes.length}): ${one.help}; ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`
  );
const pictures = () =>
  [...document.querySelectorAll("svg, img, canvas")]
    .filter((one) => !one.closest("[aria-hidden='true']") && one.checkVisibility())
    .filter((one) => !(one.getAttribute("aria-label") || one.getAttribute("alt")))
    .map((one) => `picture without a text: ${one.outerHTML.slice(0, 120)}`);
const tooWide = () => {
  const wide = document.documentElement.scrollWidth - innerWidth;
  const cut = [...document.querySelectorAll("pre")].filter((one) => one.scrollWidth > one.clientWidth);
  return [
    ...(wide > 0 ? [`the page scrolls sideways by ${wide} px`] : []),
    ...cut.map((one) => `text does not wrap: ${one.textContent.slice(0, 80)}`),
  ];
};
const numberControls = (controls) => {
  const look = (one) => {
    const style = getComputedStyle(one);
    return [style.outlineStyle, style.outlineWidth, style.boxShadow, style.backgroundColor, style.borderColor].join();
  };
  const found = [...document.querySelectorAll(controls)].filter((one) => one.checkVisibility());
  window.looks = new Map(found.map((one) => [one, look(one)]));
  window.focused = () => {
    const one = document.activeElement;
    const seen = looks.has(one) && look(one) !== looks.get(one);
    return { at: found.indexOf(one), seen, isBody: one === document.body };
  };
  return found.map((one) => one.outerHTML.slice(0, 120));
};

/** Press Tab from the top to the end. Return [findings, number of controls]: controls that Tab does not reach, or whose
 *  focus is invisible. */
async function keyboard(page) {
  const controls = await page.evaluate(numberControls, CONTROLS);
  const reached = new Map();
  for (let k = 0; k < MOST_TABS; k++) {
    await page.keyboard.press("Tab");
    const { at, seen, isBody } = await page.evaluate(() => focused());
    if (isBody || reached.has(at)) break;
    if (at >= 0) reached.set(at, seen);
  }
  const missed = controls.filter((_, at) => !reached.has(at)).map((one) => `Tab does not reach ${one}`);
  const unseen = controls.filter((_, at) => reached.get(at) === false).map((one) => `focus cannot be seen: ${one}`);
  return [[...missed, ...unseen], controls.length];
}

const profile = mkdtempSync(join(tmpdir(), "axe-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
let count = 0;
try {
  for (const path of process.argv.slice(2)) {
    let controls = 0, found = 0;
    for (const width of [1280, 390]) {
      for (const colorScheme of ["light", "dark"]) {
        const page = await context.newPage();
        await page.setViewportSize({ width, height: 900 });
        await page.emulateMedia({ colorScheme });
        await page.goto(pathToFileURL(resolve(path)).href);
        await page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
        await page.evaluate(axe.source);
        const told = [...(await page.evaluate(axeFindings, TAGS)), ...(await page.evaluate(pictures))];
        if (width === 390) told.push(...(await page.evaluate(tooWide)));
        if (colorScheme === "light") {
          const [unreached, there] = await keyboard(page);
          told.push(...unreached);
          controls = Math.max(controls, there);
        }
        for (const one of told) console.log(`${path} ${width} px ${colorScheme}: ${one}`);
        found += told.length;
        await page.close();
      }
    }
    console.log(`${path}: ${found} findings, ${controls} controls`);
    count += found;
  }
} finally {
  await context.close();
  rmSync(profile, { recursive: true, force: true });
}
process.exit(count ? 1 : 0);
