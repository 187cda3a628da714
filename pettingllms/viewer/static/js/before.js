"use strict";
// Before the libraries: Prism shall not look for programs on the page by itself.
window.Prism = { manual: true, disableWorkerMessageHandler: true };
