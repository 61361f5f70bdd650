package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sort"
)

// line is one line that a kernel's program prints; kernels/harness.cuh says when.
type line struct {
	Work  float64 `json:"work"` // units of work in an iteration
	Rate  float64 `json:"rate"` // iterations a second
	Ready bool    `json:"ready"`
	Done  bool    `json:"done"`
	N     int64   `json:"n"`      // iterations so far
	At    float64 `json:"at"`     // on a clock that all programs share, s
	BusyS float64 `json:"busy_s"` // of their busy parts so far
	// At the end:
	MovedMB float64 `json:"moved_mb"` // over PCIe, both directions
	HeldMiB float64 `json:"held_mib"` // device memory
}

var errLine = errors.New("not a line of a kernel's program")

func parseLine(text []byte) (line, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return line{}, fmt.Errorf("%w: %.80q", errLine, text)
	}
	for _, v := range [...]float64{l.Work, l.Rate, float64(l.N), l.At, l.BusyS, l.MovedMB, l.HeldMiB} {
		if !(v >= 0 && v < 1e15) {
			return line{}, fmt.Errorf("%w: %.80q", errLine, text)
		}
	}
	return l, nil
}

// track is a kernel's progress: lines with counts and times that never fall.
type track []line

func (t *track) add(l line) error {
	if n := len(*t); n > 0 {
		if last := (*t)[n-1]; l.N < last.N || l.At < last.At || l.BusyS < last.BusyS {
			return fmt.Errorf("%w: it went backwards, from iteration %d at %v s to %d at %v s", errLine, last.N, last.At, l.N, l.At)
		}
	}
	*t = append(*t, l)
	return nil
}

// from and to are when it iterated; both 0 where it didn't.
func (t track) from() float64 {
	if len(t) == 0 {
		return 0
	}
	return t[0].At
}

func (t track) to() float64 {
	if len(t) == 0 {
		return 0
	}
	return t[len(t)-1].At
}

// done is how many iterations, and busy how many seconds of busy parts, it had
// behind it at a moment, in between lines in proportion.
func (t track) at(moment float64) (done, busy float64) {
	i := sort.Search(len(t), func(i int) bool { return t[i].At >= moment })
	if i == len(t) {
		if i == 0 {
			return 0, 0
		}
		return float64(t[i-1].N), t[i-1].BusyS
	}
	b := t[i]
	if i == 0 || b.At == moment {
		return float64(b.N), b.BusyS
	}
	a := t[i-1]
	part := (moment - a.At) / (b.At - a.At)
	return float64(a.N) + part*float64(b.N-a.N), a.BusyS + part*(b.BusyS-a.BusyS)
}

// rate is its iterations a second between two moments, NaN where it made none or
// there is no time between them.
func (t track) rate(from, to float64) float64 {
	a, _ := t.at(from)
	b, _ := t.at(to)
	if !(to > from) || b <= a {
		return math.NaN()
	}
	return (b - a) / (to - from)
}
