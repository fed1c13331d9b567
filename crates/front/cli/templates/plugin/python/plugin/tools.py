"""The tools: a function each, with the schema of its arguments."""


class Refused(Exception):
    """The arguments are not for this tool; nothing was done."""


class Tool:
    def __init__(self, description, schema, run):
        self.description = description
        self.schema = schema
        self.run = run


def text_of(arguments, name):
    value = arguments.get(name) if isinstance(arguments, dict) else None
    if not isinstance(value, str):
        raise Refused("`%s` is missing, or no string" % name)
    return value


def count(arguments):
    return str(len(text_of(arguments, "text").split()))


TOOLS = {
    "count": Tool(
        "Counts the words of a text.",
        {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "What to count the words of."}},
            "required": ["text"],
            "additionalProperties": False,
        },
        count,
    ),
}
