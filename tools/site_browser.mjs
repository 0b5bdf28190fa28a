// Pages of the built site in a browser: findings of axe, content wider than the window, requests to
// other hosts, the keyboard, the first results of searches; and pictures.
//
//   npm install --prefix build/browser puppeteer-core axe-core
//   NODE_PATH=build/browser/node_modules node tools/site_browser.mjs build/site build/pictures
//
// CHROMIUM names the browser, /usr/bin/chromium by default. Exits with 1 if it finds something.
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const base = process.env.NODE_PATH ? resolve(process.env.NODE_PATH) : resolve("node_modules");
const load = createRequire(join(base, "here.cjs"));
const puppeteer = load("puppeteer-core");
const axe = load.resolve("axe-core/axe.min.js");

const PAGES = [
  "index", "start/index", "start/first_model", "start/outcome", "guide/index", "guide/uncertainty",
  "guide/regression", "guide/classification", "guide/torch", "guide/troubleshooting",
  "guide/comparison", "guide/features", "methods/index", "methods/hmc", "methods/baoab",
  "gallery/index", "gallery/regression_bands", "gallery/cold_posteriors", "api/index",
  "api/generated/ribbit.HMC", "api/c", "developer/index", "developer/izmailov",
  "developer/platforms", "developer/results", "developer/effective", "developer/benchmarks",
  "about/changelog", "source/tests/gates/test_conjugate.py",
];
// Words of readers; a page for users is among the first results of each.
const SEARCHES = [
  "uncertainty", "classification", "multiclass", "credible interval", "tutorial",
  "troubleshooting", "variational inference", "prior", "regression",
];
const LOAD = { waitUntil: "load", timeout: 120_000 }; // also on a machine with other work
const WIDTHS = [1280, 400];
const SCHEMES = ["light", "dark"];

const [site, pictures] = process.argv.slice(2).map((name) => resolve(name));
mkdirSync(pictures, { recursive: true });
const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--allow-file-access-from-files"],
});
let found = 0;
const say = (...words) => { found += 1; console.log(...words); };

for (const name of PAGES) {
  for (const width of WIDTHS) {
    for (const scheme of SCHEMES) {
      const page = await browser.newPage();
      const where = `${name} ${width} ${scheme}:`;
      page.on("request", (request) => {
        if (/^https?:/.test(request.url())) say(where, "asks for", request.url());
      });
      page.on("pageerror", (error) => say(where, error.message));
      await page.setViewport({ width, height: 900 });
      await page.emulateMediaFeatures([
        { name: "prefers-color-scheme", value: scheme },
        { name: "prefers-reduced-motion", value: "reduce" },
      ]);
      await page.goto(pathToFileURL(join(site, `${name}.html`)).href, LOAD);
      await page.evaluate(() => globalThis.MathJax?.startup?.promise);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (wide > 0) say(where, "is wider than the window by", wide);
      // What is cut off at the right and in nothing that scrolls.
      const cut = await page.evaluate(() => {
        const scrolls = (e) => e && e !== document.body && (
          /auto|scroll/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
        return [...document.querySelectorAll(".bd-article *")].filter((e) =>
          e.getBoundingClientRect().right > innerWidth + 1 && !scrolls(e)
        ).map((e) => e.outerHTML.slice(0, 90));
      });
      if (cut.length) say(where, "cuts off", cut.length, cut.at(-1));
      const picture = join(pictures, `${name.replaceAll("/", "-")}-${width}-${scheme}.png`);
      await page.screenshot({ path: picture });
      await page.addScriptTag({ path: axe });
      const { violations } = await page.evaluate(() => globalThis.axe.run({
        runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"],
      }));
      for (const { id, nodes } of violations) {
        say(where, id, nodes.length, nodes[0].target.join(" "), nodes[0].failureSummary);
      }
      // Tab comes to the link that skips what every page begins with, and then further.
      let stops = 0;
      for (let i = 0; i < 12; i += 1) {
        await page.keyboard.press("Tab");
        stops = await page.evaluate(() => {
          globalThis.stops ??= new Set();
          return globalThis.stops.add(document.activeElement).size;
        });
      }
      if (stops < 10) say(where, "the keyboard reaches", stops, "places of 12");
      await page.close();
    }
  }
}
for (const words of SEARCHES) {
  const page = await browser.newPage();
  const search = pathToFileURL(join(site, "search.html"));
  search.searchParams.set("q", words);
  await page.goto(search.href, LOAD);
  const links = "#search-results li > a";
  await page.waitForSelector(links, { timeout: 60_000 }).catch(() => null);
  const first = await page.$$eval(links, (all) => all.slice(0, 3).map((a) => a.getAttribute("href")));
  if (!first.some((link) => /^(start|guide|methods)\//.test(link))) {
    say("a search for", words, "finds first", ...first);
  }
  await page.close();
}
await browser.close();
console.log(found ? `${found} found` : "nothing found");
process.exit(found ? 1 : 0);
