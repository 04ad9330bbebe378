/* A page that is opened from a folder may start no worker, in which the site's search runs: here the worker is a frame of
   the page. From a server the browser's own is used. scripts/site puts this in place of a script that the theme
   would load from elsewhere. */
'use strict';
if (location.protocol === 'file:') {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = Object.assign(document.createElement('iframe'), {hidden: true});
      document.body.append(this.frame);
      const inside = this.frame.contentWindow, page = this.frame.contentDocument, base = new URL(url, location);
      const load = from => new Promise((done, failed) => {
        const script = page.createElement('script');
        Object.assign(script, {src: new URL(from, base), onload: done, onerror: failed});
        page.body.append(script);
      });
      inside.postMessage = data => this.dispatchEvent(new MessageEvent('message', {data}));
      inside.importScripts = (...list) => list.reduce((before, from) => before.then(() => load(from)), Promise.resolve());
      load(base).then(() => {
        this.loaded = true;
        this.waiting.splice(0).forEach(data => this.postMessage(data));
      });
    }
    postMessage(data) {
      if (this.loaded) this.frame.contentWindow.dispatchEvent(new MessageEvent('message', {data}));
      else this.waiting.push(data);
    }
    terminate() { this.frame.remove(); }
  };
}
