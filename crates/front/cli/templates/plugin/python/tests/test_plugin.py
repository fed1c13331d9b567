"""Run with `python3 -m unittest discover tests`."""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "plugin"))
sys.dont_write_bytecode = True

import server


def call(name, arguments):
    params = {"name": name, "arguments": arguments}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return server.reply(json.dumps(asked))


class Tools(unittest.TestCase):
    def test_words_are_counted(self):
        result = call("count", {"text": "one  two\nthree"})["result"]
        self.assertEqual(result["content"], [{"type": "text", "text": "3"}])

    def test_what_does_not_fit_is_refused(self):
        self.assertIn("`text`", call("count", {"text": 7})["error"]["message"])
        self.assertIn("no tool", call("other", {})["error"]["message"])


if __name__ == "__main__":
    unittest.main()
