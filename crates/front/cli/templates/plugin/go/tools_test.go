package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func said(t *testing.T, line string) string {
	t.Helper()
	text, err := json.Marshal(reply([]byte(line)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestWordsAreCounted(t *testing.T) {
	line := `{"id":1,"method":"tools/call","params":{"name":"count","arguments":{"text":"one  two\nthree"}}}`
	if answer := said(t, line); !strings.Contains(answer, `"text":"3"`) {
		t.Error(answer)
	}
}

func TestWhatDoesNotFitIsRefused(t *testing.T) {
	for arguments, why := range map[string]string{`{}`: "missing", `{"text":7}`: "no arguments", `{"other":1}`: "unknown"} {
		line := `{"id":1,"method":"tools/call","params":{"name":"count","arguments":` + arguments + `}}`
		if answer := said(t, line); !strings.Contains(answer, why) || !strings.Contains(answer, "error") {
			t.Error(arguments, answer)
		}
	}
	other := `{"id":1,"method":"tools/call","params":{"name":"other","arguments":{}}}`
	if answer := said(t, other); !strings.Contains(answer, "no tool") {
		t.Error(answer)
	}
}
