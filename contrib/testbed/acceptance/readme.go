package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// block is one fenced block of commands of the README: its info string is
// "sh WHERE NAME", e.g. "sh controller install".
type block struct {
	where, name string
	text        string // the commands, a line each
	line        int    // of the README, where the commands begin
}

// manual is the README's commands, by "WHERE NAME".
type manual struct {
	blocks []block
	used   map[string]bool
}

// places are where a block may be run.
var places = map[string]bool{"controller": true, "nodes": true, "user": true}

// readManual finds the blocks.
func readManual(r io.Reader) (*manual, error) {
	m := &manual{used: map[string]bool{}}
	var open *block
	s := bufio.NewScanner(r)
	for n := 1; s.Scan(); n++ {
		line := s.Text()
		switch {
		case open != nil && line == "```":
			if strings.TrimSpace(open.text) == "" {
				return nil, fmt.Errorf("line %d: no commands in %s %s", n, open.where, open.name)
			}
			if _, err := m.find(open.where, open.name); err == nil {
				return nil, fmt.Errorf("line %d: a second block %s %s", n, open.where, open.name)
			}
			m.blocks, open = append(m.blocks, *open), nil
		case open != nil:
			open.text += line + "\n"
		case strings.HasPrefix(line, "```"):
			f := strings.Fields(strings.TrimPrefix(line, "```"))
			if len(f) != 3 || f[0] != "sh" || !places[f[1]] {
				return nil, fmt.Errorf("line %d: %q: a block begins with ```sh WHERE NAME, where WHERE is controller, nodes or user", n, line)
			}
			open = &block{where: f[1], name: f[2], line: n + 1}
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the block has no end", open.line)
	}
	return m, nil
}

func (m *manual) find(where, name string) (*block, error) {
	for i := range m.blocks {
		if b := &m.blocks[i]; b.where == where && b.name == name {
			return b, nil
		}
	}
	return nil, fmt.Errorf("the README has no block %q", where+" "+name)
}

// take is find for a block that is now being run.
func (m *manual) take(where, name string) (*block, error) {
	b, err := m.find(where, name)
	if err == nil {
		m.used[where+" "+name] = true
	}
	return b, err
}

// left lists the blocks that were not run.
func (m *manual) left() []string {
	var out []string
	for i := range m.blocks {
		if key := m.blocks[i].where + " " + m.blocks[i].name; !m.used[key] {
			out = append(out, fmt.Sprintf("%s (line %d)", key, m.blocks[i].line))
		}
	}
	return out
}
