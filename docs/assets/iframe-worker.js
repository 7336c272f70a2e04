/* Run web workers in hidden frames when a page is opened from a folder.
 *
 * Browsers refuse to start a worker from a `file:` address, and the search of this site runs in one.
 * A frame has what the search needs of a worker: a global scope, messages in and messages out.
 */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.onmessage = this.onerror = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.scope = this.frame.contentWindow;
      this.scope.postMessage = (data) => this.emit(new MessageEvent("message", { data }));
      this.scope.importScripts = async (...addresses) => {
        for (const each of addresses) await this.load(each);
      };
      this.loaded = this.load(address).catch(() => this.emit(new ErrorEvent("error")));
    }

    load(address) {
      const script = this.frame.contentDocument.createElement("script");
      script.src = new URL(address, location).href;
      return new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = reject;
        this.frame.contentDocument.body.append(script);
      });
    }

    emit(event) {
      const handler = this["on" + event.type];
      if (handler) handler.call(this, event);
      this.dispatchEvent(event);
    }

    postMessage(data) {
      this.loaded.then(() =>
        this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data })),
      );
    }

    terminate() {
      this.frame.remove();
    }
  };
}
