package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestManual(t *testing.T) {
	m := &manual{used: map[string]bool{}}
	if err := m.read("x.md", "# x\n```sh nodes start\na\n\n  b # c\n```\ntext\n```sh user see\nc\n```\n"); err != nil {
		t.Fatal(err)
	}
	if b := m.take("nodes", "start"); b.text != "a\n\n  b # c\n" || b.line != 3 {
		t.Errorf("block %+v", b)
	}
	if left := m.left(); !slices.Equal(left, []string{"user see (x.md line 9)"}) {
		t.Errorf("left %q", left)
	}
	if attempt(func() { m.take("controller", "start") }) == nil {
		t.Error("a block of another place passes for one of the controller")
	}
	for _, bad := range []string{
		"```sh nodes\na\n```\n", "```sh moon start\na\n```\n", "```\na\n```\n", "```sh nodes start\na\n",
		"```sh nodes start\n\n```\n", "```sh nodes start\na\n```\n```sh nodes start\nb\n```\n",
	} {
		if err := (&manual{used: map[string]bool{}}).read("x.md", bad); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
	if err := m.read("y.md", "```sh user see\nc\n```\n"); err != nil || len(m.blocks) != 2 {
		t.Errorf("the block of another page is refused, or counted twice: %v", err)
	}
	if m.read("y.md", "```sh user see\nd\n```\n") == nil {
		t.Error("a block passes that says something else on another page")
	}
}

// README.md and the pages can be followed, and a check follows every block.
func TestPages(t *testing.T) {
	m, err := readPages("../../..")
	if err != nil {
		t.Fatal(err)
	}
	code := ""
	for _, name := range []string{"steps.go", "jobs.go", "playbook.go"} {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code += string(body)
	}
	for _, b := range m.blocks {
		if !strings.Contains(code, `"`+b.where+`", "`+b.name+`"`) {
			t.Errorf("%s line %d: no check follows the block %s %s", b.page, b.line, b.where, b.name)
		}
	}
	if len(m.blocks) < 10 {
		t.Errorf("the pages have %d blocks of commands only", len(m.blocks))
	}
}
