// The page: asks the service what it offers, and opens its parts.

import { openAdministration } from "./administration.js";
import { send } from "./api.js";
import { openBursts } from "./bursts.js";

const { body: settings } = await send("/page/settings.json");
document.querySelector("#version").textContent = settings.version;
openAdministration(settings);
await openBursts(settings);
document.documentElement.dataset.ready = "yes";
