package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kernel is an application with a known demand.
type Kernel struct {
	Name   string
	Source string // kernels/SOURCE.cu
	// Duty is the part of an iteration, alone, in which the GPU is at work; the
	// host sleeps for the rest.
	Duty   float64
	Period time.Duration // of an iteration when alone, about
	SMs    float64       // part of the SMs that its kernels use, 0..1
	MemMiB float64       // device memory that it allocates; 0 = next to nothing
	// Copies: its work is copies over PCIe, for which no kernel runs.
	Copies bool
}

// args are the program's arguments in all modes.
func (k *Kernel) args() []string {
	num := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	return []string{
		"--duty", num(k.Duty), "--period-ms", num(float64(k.Period) / float64(time.Millisecond)),
		"--sms", num(k.SMs), "--mem-mib", num(k.MemMiB),
	}
}

// demand is what of the catalogue can be chosen.
type demand struct {
	duty   float64
	period time.Duration
	mem    float64 // of hungry, MiB; 0 = three tenths of the card
}

// catalogue returns the kernels for a card with so much memory, MiB: the named ones, or all.
func catalogue(d demand, memMiB float64, names []string) ([]Kernel, error) {
	hungry := d.mem
	if hungry == 0 {
		hungry = math.Floor(0.3*memMiB/256) * 256
	}
	ms := time.Millisecond
	switch {
	case !(d.duty > 0 && d.duty < 1):
		return nil, fmt.Errorf("--duty %v is not between 0 and 1", d.duty)
	case d.period < ms || d.period > 10*time.Second:
		return nil, fmt.Errorf("--period %v is not from 1ms to 10s", d.period)
	case !(hungry >= 256 && hungry <= 0.4*memMiB):
		// Two of them must fit at the same time.
		return nil, fmt.Errorf("--memory %v MiB is not from 256 to %.0f, four tenths of the card's", hungry, 0.4*memMiB)
	}
	all := []Kernel{
		{Name: "compute", Source: "compute", Duty: 1, Period: 5 * ms, SMs: 1},
		{Name: "narrow", Source: "compute", Duty: 1, Period: 5 * ms, SMs: 0.25},
		{Name: "memory", Source: "memory", Duty: 1, Period: 5 * ms, SMs: 1, MemMiB: 512},
		{Name: "pcie", Source: "pcie", Duty: 1, Period: 20 * ms, SMs: 1, Copies: true},
		{Name: "bursty", Source: "compute", Duty: d.duty, Period: d.period, SMs: 1},
		{Name: "hungry", Source: "memory", Duty: 0.5, Period: 20 * ms, SMs: 1, MemMiB: hungry},
	}
	if len(names) == 0 {
		return all, nil
	}
	var some []Kernel
	for _, k := range all {
		if slices.Contains(names, k.Name) {
			some = append(some, k)
		}
	}
	if len(some) != len(names) {
		var known []string
		for _, k := range all {
			known = append(known, k.Name)
		}
		return nil, fmt.Errorf("--kernels %.100q: there are %s, each once", names, strings.Join(known, ", "))
	}
	return some, nil
}

// groups lists what runs together, as indexes of n kernels: every pair, each kernel
// with itself too, and then so many triples of neighbours in the catalogue.
func groups(n, triples int) [][]int {
	var out [][]int
	for i := range n {
		for j := i; j < n; j++ {
			out = append(out, []int{i, j})
		}
	}
	for i := range min(triples, n) {
		if n < 3 {
			break
		}
		out = append(out, []int{i, (i + 1) % n, (i + 2) % n})
	}
	return out
}
