package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestManual(t *testing.T) {
	m, err := readManual("# x\n```sh nodes start\na\n\n  b # c\n```\ntext\n```sh user see\nc\n```\n")
	if err != nil {
		t.Fatal(err)
	}
	if b := m.take("nodes", "start"); b.text != "a\n\n  b # c\n" || b.line != 3 {
		t.Errorf("block %+v", b)
	}
	if left := m.left(); !slices.Equal(left, []string{"user see (line 9)"}) {
		t.Errorf("left %q", left)
	}
	if attempt(func() { m.take("controller", "start") }) == nil {
		t.Error("a block of another place passes for one of the controller")
	}
	for _, bad := range []string{
		"```sh nodes\na\n```\n", "```sh moon start\na\n```\n", "```\na\n```\n", "```sh nodes start\na\n",
		"```sh nodes start\n\n```\n", "```sh nodes start\na\n```\n```sh nodes start\nb\n```\n",
	} {
		if _, err := readManual(bad); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}

// TestREADME: the README can be followed, and every block of it is followed by a check.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	m, err := readManual(string(readme))
	if err != nil {
		t.Fatal(err)
	}
	code := ""
	for _, name := range []string{"steps.go", "jobs.go"} {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code += string(body)
	}
	for _, b := range m.blocks {
		if !strings.Contains(code, `"`+b.where+`", "`+b.name+`"`) {
			t.Errorf("README.md line %d: no check follows the block %s %s", b.line, b.where, b.name)
		}
	}
	if len(m.blocks) < 10 {
		t.Errorf("the README has %d blocks of commands only", len(m.blocks))
	}
}
