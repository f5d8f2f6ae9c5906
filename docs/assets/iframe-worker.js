/* Search from a folder, without a server: browsers start no Worker for pages of file://, so this one runs the
   worker's script in a hidden frame. Elsewhere it does nothing. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = this.onerror = this.onmessageerror = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.deliver(this, new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      this.ready = new Promise((resolve) => (script.onload = resolve));
      script.onerror = () => this.deliver(this, new ErrorEvent("error", { message: `${url} does not load`, cancelable: true }));
      script.src = new URL(url, location.href).href;
      inside.document.body.appendChild(script);
    }
    deliver(target, event) {
      setTimeout(() => {
        target.dispatchEvent(event);
        if (target === this && this[`on${event.type}`]) this[`on${event.type}`](event);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.deliver(this.frame.contentWindow, new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
