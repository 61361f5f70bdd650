package main

import (
	"cmp"
	"slices"
)

// lanes gives every run the lowest lane that is free during the run, so that runs at the same time
// lie above each other.
func lanes(runs []run) []int {
	order := make([]int, len(runs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(runs[a].startS, runs[b].startS) })
	out := make([]int, len(runs))
	var until []float64
	for _, i := range order {
		lane := slices.IndexFunc(until, func(t float64) bool { return t <= runs[i].startS })
		if lane < 0 {
			lane, until = len(until), append(until, 0)
		}
		out[i], until[lane] = lane, runs[i].endS
	}
	return out
}
