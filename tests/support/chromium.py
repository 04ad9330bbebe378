"""Headless Chromium, driven over its DevTools protocol. Needs nothing but Python."""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 120  # of a busy machine
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def find_browser():
    return next((shutil.which(name) for name in BROWSERS if shutil.which(name)), None)


class Browser:
    """Chromium with its protocol on descriptors 3 and 4: JSON texts, each ended by a zero."""

    def __init__(self, program, folder):
        to, self.write_end = os.pipe()
        self.read_end, back = os.pipe()
        words = [program, "--headless", "--disable-gpu", "--no-first-run", "--disable-extensions",
                 "--disable-background-networking", "--disable-dev-shm-usage",
                 "--remote-debugging-pipe", "--user-data-dir=" + folder, "about:blank"]
        if os.getuid() == 0:
            words.insert(1, "--no-sandbox")

        def place():
            low, high = os.dup(to), os.dup(back)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self.process = subprocess.Popen(words, preexec_fn=place, close_fds=False,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to)
        os.close(back)
        self.held, self.number, self.session, self.events = b"", 0, None, []

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.held:
                more = os.read(self.read_end, 65536)
                if not more:
                    raise RuntimeError("Chromium ended")
                self.held += more
            text, self.held = self.held.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") != self.number:
                self.events.append(answer)
                continue
            if "error" in answer:
                raise RuntimeError("%s: %s" % (method, answer["error"]))
            return answer["result"]

    def open(self, url):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Network", "Log"):
            self.call(part + ".enable")
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def value(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError("%s: %s" % (script, result["exceptionDetails"]))
        return result["result"].get("value")

    def wait(self, script):
        end = time.monotonic() + PATIENCE_S
        while not self.value(script):
            if time.monotonic() > end:
                raise RuntimeError("never: " + script)
            time.sleep(0.02)

    def press(self, key, code, modifiers=0):
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown" if more else "rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, modifiers=modifiers,
                      windowsVirtualKeyCode=code, nativeVirtualKeyCode=code, **more)

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x, y):
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def size(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, clip=None, form="png"):
        """A screenshot of a rectangle of the page: left, top, width, height."""
        options = {"format": form, "captureBeyondViewport": True}
        if form == "webp":
            options["quality"] = 85
        if clip:
            options["clip"] = dict(zip(("x", "y", "width", "height"), clip), scale=1)
        return base64.b64decode(self.call("Page.captureScreenshot", **options)["data"])

    def faults(self):
        """Exceptions and errors of the page's own script."""
        found = []
        for e in self.events:
            if e.get("method") == "Runtime.exceptionThrown":
                found.append("a fault: %s" % e["params"]["exceptionDetails"])
            if e.get("method") == "Runtime.consoleAPICalled" and e["params"]["type"] == "error":
                found.append("an error: %s" % e["params"]["args"])
            if e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] == "error":
                found.append("an error: %s" % e["params"]["entry"]["text"])
        return found

    def requests(self):
        return [e["params"]["request"]["url"] for e in self.events
                if e.get("method") == "Network.requestWillBeSent"]

    def close(self):
        self.process.terminate()
        self.process.wait()

    def write(self, field, text):
        self.value("document.getElementById('%s').value = ''; document.getElementById('%s').focus()"
                   % (field, field))
        self.call("Input.insertText", text=text)


def judge(folder, drive):
    """Calls drive(browser, wrong) with a fresh browser, whose profile is under `folder`, and ends the program:
    on 0 where `wrong` stays empty, on 1 with its lines, on 77 where there is no Chromium."""
    program = find_browser()
    if not program:
        print("none of %s is installed" % ", ".join(BROWSERS))
        sys.exit(77)
    wrong = []
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            drive(browser, wrong)
        except RuntimeError as error:
            wrong.append(str(error))
            wrong += browser.faults()
        finally:
            browser.close()
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)
