// The plugin: a server of the Model Context Protocol over standard streams.
//
// Standard output belongs to the protocol; what is written to standard error
// is in the plugin's log. New tools go into tools.go.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
)

func main() {
	if err := serve(os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

type object map[string]any

type request struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"params"`
}

// Answers one line after the other until there is no more.
func serve(from io.Reader, to io.Writer) error {
	lines := bufio.NewReader(from)
	answers := json.NewEncoder(to)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if said := reply(line); said != nil {
			if err := answers.Encode(said); err != nil {
				return err
			}
		}
	}
}

// What is answered to a line, or nothing where nobody waits for an answer.
func reply(line []byte) object {
	var asked request
	if err := json.Unmarshal(line, &asked); err != nil {
		return fault(nil, -32700, "this is no request")
	}
	if asked.ID == nil {
		return nil
	}
	result, err := answer(asked)
	var refused refusal
	switch {
	case errors.As(err, &refused):
		return fault(asked.ID, -32602, refused.Error())
	case err != nil:
		return fault(asked.ID, -32601, err.Error())
	}
	return object{"jsonrpc": "2.0", "id": asked.ID, "result": result}
}

func fault(id json.RawMessage, code int, message string) object {
	return object{"jsonrpc": "2.0", "id": id, "error": object{"code": code, "message": message}}
}

func answer(asked request) (object, error) {
	able := object{"tools": object{}}
	switch asked.Method {
	case "server/discover":
		versions := []string{"2026-07-28"}
		return object{"supportedVersions": versions, "capabilities": able, "resultType": "complete"}, nil
	case "initialize":
		info := object{"name": "{{name}}", "version": "0.1.0"}
		return object{"protocolVersion": "2025-11-25", "capabilities": able, "serverInfo": info}, nil
	case "ping":
		return object{}, nil
	case "tools/list":
		return object{"tools": tools, "resultType": "complete"}, nil
	case "tools/call":
		return call(asked.Params.Name, asked.Params.Arguments)
	}
	return nil, errors.New("no such method")
}

func call(name string, arguments json.RawMessage) (object, error) {
	for _, one := range tools {
		if one.Name != name {
			continue
		}
		text, err := one.run(arguments)
		var refused refusal
		if errors.As(err, &refused) {
			return nil, refused
		}
		if err != nil {
			text = err.Error()
		}
		content := []object{{"type": "text", "text": text}}
		return object{"content": content, "isError": err != nil, "resultType": "complete"}, nil
	}
	return nil, refusal("there is no tool `" + name + "`")
}
