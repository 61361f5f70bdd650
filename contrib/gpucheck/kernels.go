package main

import (
	"context"
	"embed"
	"fmt"
	"math"
	"os"
	"path/filepath"
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

// catalogue returns the kernels for a card, nil = one of 16 GiB: the named ones, or all.
func catalogue(c *card, names []string) ([]Kernel, error) {
	mem := 16384.0
	if c != nil {
		mem = c.MemMiB
	}
	ms := time.Millisecond
	all := []Kernel{
		{Name: "compute", Source: "compute", Duty: 1, Period: 5 * ms, SMs: 1},
		{Name: "narrow", Source: "compute", Duty: 1, Period: 5 * ms, SMs: 0.25},
		{Name: "memory", Source: "memory", Duty: 1, Period: 5 * ms, SMs: 1, MemMiB: 512},
		{Name: "pcie", Source: "pcie", Duty: 1, Period: 20 * ms, SMs: 1, Copies: true},
		{Name: "bursty", Source: "compute", Duty: 0.3, Period: 200 * ms, SMs: 1},
		{Name: "hungry", Source: "memory", Duty: 0.5, Period: 20 * ms, SMs: 1, MemMiB: math.Floor(0.3*mem/256) * 256},
	}
	var some []Kernel
	var known []string
	for _, k := range all {
		known = append(known, k.Name)
		if len(names) == 0 || slices.Contains(names, k.Name) {
			some = append(some, k)
		}
	}
	if len(names) > 0 && len(some) != len(names) {
		return nil, fmt.Errorf("--kernels %.100q: there are %s, each once", names, strings.Join(known, ", "))
	}
	return some, nil
}

//go:embed kernels
var sources embed.FS

// compile builds the kernels' programs with nvcc into a folder. nvcc's default
// target is the oldest card that it knows; the driver compiles for newer ones when
// a program starts.
func compile(ctx context.Context, nvcc, folder string, kernels []Kernel) error {
	src := filepath.Join(folder, "kernels")
	if err := os.CopyFS(src, sources); err != nil {
		return fmt.Errorf("write kernels: %w", err)
	}
	built := map[string]bool{}
	for _, k := range kernels {
		in := filepath.Join(src, "kernels", k.Source+".cu")
		if built[k.Source] {
			continue
		}
		built[k.Source] = true
		if _, err := output(ctx, "", os.Environ(), nvcc, "-O2", "-o", filepath.Join(folder, k.Source), in); err != nil {
			return fmt.Errorf("nvcc %s.cu: %w", k.Source, err)
		}
	}
	return nil
}
