"""Chromium without a window, steered through a pipe (Chrome DevTools Protocol)."""

import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

#: Seconds until the browser has answered.
TIMEOUT = 120

_KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Escape": 27, "Enter": 13}


class Browser:
    """A running Chromium, with a profile and pages in a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.events = []
        self._calls, self._buffer = 0, b""
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        # The browser reads requests from descriptor 3 and writes answers to descriptor 4.
        redirect = f'exec "$@" 3<&{requests} 4>&{answers}'
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
        self._process = subprocess.Popen(
            ["bash", "-c", redirect, "bash", CHROMIUM, *options, f"--user-data-dir={folder}"],
            pass_fds=(requests, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(folder)},
        )
        os.close(requests)
        os.close(answers)

    def close(self):
        self.call("Browser.close")
        self._process.wait(TIMEOUT)
        os.close(self._requests)
        os.close(self._answers)

    def call(self, method, session=None, **parameters):
        """Return the answer to a request; events before it are kept."""
        self._calls += 1
        request = {"id": self._calls, "method": method, "params": parameters}
        if session:
            request["sessionId"] = session
        text = json.dumps(request).encode() + b"\0"
        while text:
            text = text[os.write(self._requests, text) :]
        answer = self._wait(lambda message: message.get("id") == request["id"])
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def wait_for(self, session, method, count=1):
        """Wait until a page has sent a number of events of a kind."""

        def is_it(event):
            return event.get("sessionId") == session and event.get("method") == method

        for _ in range(count - sum(map(is_it, self.events))):
            self._wait(is_it)

    def _wait(self, is_it):
        end = time.monotonic() + TIMEOUT
        while True:
            message = self._next(end)
            if "id" not in message:
                self.events.append(message)
            if is_it(message):
                return message

    def _next(self, end):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            text = os.read(self._answers, 1 << 20)
            assert text, "the browser has ended"
            self._buffer += text
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, page, width=1280, *, night=False, scripts=True, before=""):
        """Show a page in a window of some width; JavaScript may run before it."""
        path = self.folder / f"page{self._calls}.html"
        path.write_text(page, encoding="utf-8")
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log"):
            tab.call(f"{domain}.enable")
        tab.show(night=night)
        tab.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        tab.resize(width)
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        tab.call("Page.navigate", url=path.as_uri())
        tab.wait_for_load()
        return tab


class Tab:
    """A page in a browser."""

    def __init__(self, browser, session):
        self._browser, self._session = browser, session

    def call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def show(self, *, night):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if night else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def resize(self, width):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def wait_for_load(self, count=1):
        """Wait until the page has loaded a number of times."""
        self._browser.wait_for(self._session, "Page.loadEventFired", count)

    def wait_until(self, condition):
        """Wait until a condition in JavaScript is true, perhaps in a later frame."""
        end = time.monotonic() + TIMEOUT
        while not self.evaluate(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.02)

    @property
    def complaints(self):
        """Errors and warnings of the console, and dialogs."""
        kinds = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session
            and event["method"] in (*kinds, "Page.javascriptDialogOpening")
        ]

    def evaluate(self, code):
        """Return the value of JavaScript, which no policy of the page stops."""
        answer = self.call(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            code = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
            self.call("Input.dispatchKeyEvent", type=kind, **code)

    def drag(self, selector, start=(0.5, 0.5), end=None):
        """Press the mouse on an element, move it, and let it go; shares of the element's size."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{element}.scrollIntoView({{block: 'center'}})")
        box = self.evaluate(f"{element}.getBoundingClientRect().toJSON()")
        for kind, place in (
            ("mouseMoved", start),
            ("mousePressed", start),
            ("mouseMoved", end or start),
            ("mouseReleased", end or start),
        ):
            x, y = box["x"] + place[0] * box["width"], box["y"] + place[1] * box["height"]
            button = "none" if (kind, place) == ("mouseMoved", start) else "left"
            options = {"button": button, "buttons": int(button == "left"), "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **options)

    click = drag
