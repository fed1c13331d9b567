package main

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// A tool: what a model is told, and what it does.
type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"inputSchema"`
	run         func(arguments json.RawMessage) (string, error)
}

// The arguments are not for this tool; nothing was done.
type refusal string

func (r refusal) Error() string { return string(r) }

var tools = []tool{
	{
		Name:        "count",
		Description: "Counts the words of a text.",
		Schema: json.RawMessage(`{
			"type": "object",
			"properties": {"text": {"type": "string", "description": "What to count the words of."}},
			"required": ["text"],
			"additionalProperties": false
		}`),
		run: count,
	},
}

func count(given json.RawMessage) (string, error) {
	var arguments struct {
		Text *string `json:"text"`
	}
	if err := read(given, &arguments); err != nil {
		return "", err
	}
	if arguments.Text == nil {
		return "", refusal("`text` is missing")
	}
	return strconv.Itoa(len(strings.Fields(*arguments.Text))), nil
}

// Reads arguments strictly: what nobody knows is refused.
func read(given json.RawMessage, arguments any) error {
	decoder := json.NewDecoder(bytes.NewReader(given))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(arguments); err != nil {
		return refusal("these are no arguments for it: " + err.Error())
	}
	return nil
}
