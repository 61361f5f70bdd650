package main

import (
	"cmp"
	"slices"
	"strings"
)

// longestFirst orders cells so that no long one begins late: whole GPUs first, because jobs run one
// after the other there; then cells with the longest arrivals; then by work.
func longestFirst(cells []*cell) []*cell {
	out := slices.Clone(cells)
	rank := func(c *cell) int {
		if c.variant.name == "whole" {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(out, func(a, b *cell) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.comeS(), a.comeS()), cmp.Compare(b.soloS(), a.soloS()))
	})
	return out
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
