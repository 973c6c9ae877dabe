// Browsers start no worker from a file. In a folder that is opened without a server, the theme's search
// therefore runs in a hidden frame, which looks like a worker to the page.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const page = this.frame.contentDocument;
      page.open();
      page.write("<!doctype html><title>Search</title><body>");
      page.close();
      const inside = this.frame.contentWindow;
      const load = (script) =>
        new Promise((loaded, failed) => {
          const element = page.createElement("script");
          Object.assign(element, { src: script, onload: loaded, onerror: failed });
          page.body.append(element);
        });
      inside.importScripts = async (...scripts) => {
        for (const script of scripts) await load(script);
      };
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = load(new URL(url, location.href).href);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
