package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
	"unsafe"
)

// Kernel is an application with a known demand.
type Kernel struct {
	Name   string
	Source string // of its work, by the name in loads
	// Duty is the part of an iteration, alone, in which the GPU is at work; the host sleeps for the rest.
	Duty   float64
	Period time.Duration // of an iteration when alone, about
	SMs    float64       // part of the SMs that its kernels use, 0..1
	MemMiB float64       // device memory that it allocates; 0 = next to nothing
	// Warm is for how long it computes before its work is found: what the first calls cost (compiling for this card,
	// clocks that rise) doesn't count.
	Warm time.Duration
	Work float64 // units of work in an iteration; 0 = to be found
}

// busy is how long the GPU is at work in an iteration alone.
func (k *Kernel) busy() time.Duration { return time.Duration(k.Duty * float64(k.Period)) }

// run is the command by which its client keeps the GPU at work for this part of the time, alone.
func (k *Kernel) run(duty float64) string {
	return fmt.Sprintf("run %g", k.busy().Seconds()*(1/duty-1))
}

// checker is what clients of the situations compute.
var checker = &Kernel{Name: "check", Source: "check", Duty: 1, Period: 5 * time.Millisecond}

// catalogue returns the kernels for a card, nil = one of 16 GiB: the named ones, or all.
func catalogue(c *card, names []string) (some []*Kernel, err error) {
	mem := 16384.0
	if c != nil {
		mem = c.MemMiB
	}
	ms, known := time.Millisecond, ""
	for _, k := range []*Kernel{
		{Name: "compute", Source: "compute", Duty: 1, Period: 5 * ms, SMs: 1},
		{Name: "narrow", Source: "compute", Duty: 1, Period: 5 * ms, SMs: 0.25},
		{Name: "memory", Source: "memory", Duty: 1, Period: 5 * ms, SMs: 1, MemMiB: 512},
		{Name: "pcie", Source: "pcie", Duty: 1, Period: 20 * ms, SMs: 1},
		{Name: "bursty", Source: "compute", Duty: 0.3, Period: 200 * ms, SMs: 1},
		{Name: "hungry", Source: "memory", Duty: 0.5, Period: 20 * ms, SMs: 1, MemMiB: math.Floor(0.3*mem/256) * 256},
	} {
		known += " " + k.Name
		k.Warm = 500 * ms
		if len(names) == 0 || slices.Contains(names, k.Name) {
			some = append(some, k)
		}
	}
	if len(names) > 0 && len(some) != len(names) {
		return nil, fmt.Errorf("--kernels %.100q: there are%s, each once", names, known)
	}
	return some, nil
}

// load is what a kernel does on the GPU.
type load struct {
	heldMiB float64                 // device memory
	movedMB float64                 // over PCIe, both directions, by a unit of work, MB of 1e6 bytes
	work    func(units int64) error // does so many units and waits for their end
}

// loads makes the loads, by a kernel's source.
var loads = map[string]func(d *device, k *Kernel) (load, error){
	"check": checks, "compute": computes, "memory": copiesWithin, "pcie": copiesAcross,
}

// find returns the units of work that take so long.
func (l *load) find(warm, target time.Duration) (float64, error) {
	for from := time.Now(); time.Since(from) < warm; {
		if err := l.work(1); err != nil {
			return 0, err
		}
	}
	for units := int64(1); ; units *= 2 {
		from := time.Now()
		if err := l.work(units); err != nil {
			return 0, err
		}
		if took := time.Since(from); took >= target/2 || units >= 1<<40 {
			return max(1, math.Round(float64(units)*target.Seconds()/took.Seconds())), nil
		}
	}
}

// How many threads a block has: of what the host checks, and of the arithmetic and the copies.
const checkThreads, blockThreads = 256, 512

// errWrong says that the GPU computed something else than it should.
var errWrong = errors.New("it computes wrongly")

// checks is what the host checks; a unit of work is a round.
func checks(d *device, _ *Kernel) (l load, err error) {
	f, err := d.function("congruential")
	got, seed := make([]uint32, d.sms*8*checkThreads), uint32(0)
	out, aerr := d.alloc(uint64(4 * len(got)))
	l.work = func(units int64) error {
		seed++
		rounds := uint64(units) //nolint:gosec // from 1 on
		if err := d.launch(f, d.sms*8, checkThreads, 0, out, uint64(seed), rounds); err != nil {
			return err
		}
		if err := d.wait(); err != nil {
			return err
		}
		code := d.ToHost(unsafe.Pointer(&got[0]), out, uint64(4*len(got))) //nolint:gosec // CUDA writes there
		if err := d.check("cuMemcpyDtoH", code); err != nil {
			return err
		}
		if !congruential(got, seed, rounds) {
			return errWrong
		}
		return nil
	}
	return l, errors.Join(err, aerr)
}

// congruential reports whether got is what the kernel of this name computes: a round maps x to a x + b, and so do many,
// with another a and b.
func congruential(got []uint32, seed uint32, rounds uint64) bool {
	times, plus := uint32(1), uint32(0)
	// By squaring: the function of 2^k rounds, for each bit of rounds.
	for t, p := uint32(1664525), uint32(1013904223); rounds > 0; rounds >>= 1 {
		if rounds&1 != 0 {
			times, plus = times*t, plus*t+p
		}
		t, p = t*t, p*t+p
	}
	for i, v := range got {
		if v != times*(seed+uint32(i))+plus { //nolint:gosec // modulo 2^32
			return false
		}
	}
	return true
}

// computes is arithmetic in registers: it asks for SMs and for nothing else. On a part of the SMs one block is launched
// for each, with so much shared memory that no second one fits there.
func computes(d *device, k *Kernel) (l load, err error) {
	f, err := d.function("multiply_add")
	if err != nil {
		return l, err
	}
	blocks, shared := d.blocks(), 0
	if k.SMs < 1 {
		blocks = max(1, int(math.Round(k.SMs*float64(d.sms))))
		shared = min(d.attribute(sharedOfSM)/2+1024, d.attribute(sharedOfBlock))
		//nolint:gosec // some KiB
		if err := d.check("cuFuncSetAttribute", d.FuncAttribute(f, dynamicShared, int32(shared))); err != nil {
			return l, err
		}
	}
	out, err := d.alloc(256)
	l.work = func(units int64) error {
		if err := d.launch(f, blocks, blockThreads, shared, out, uint64(units)); err != nil { //nolint:gosec // from 1 on
			return err
		}
		return d.wait()
	}
	return l, err
}

// copiesWithin copies within the GPU's memory: it asks for its bandwidth. It holds the kernel's memory, all written
// once, and walks through it 256 MiB a time, more than a cache has.
func copiesWithin(d *device, k *Kernel) (l load, err error) {
	const chunk = 256 << 20
	f, err := d.function("copy_half")
	chunks := make([]uint64, max(1, int(math.Round(k.MemMiB/(chunk>>20)))))
	for i := range chunks {
		if err == nil {
			chunks[i], err = d.alloc(chunk)
		}
	}
	if err == nil {
		err = d.wait()
	}
	next, blocks := 0, d.blocks()
	l.heldMiB = float64(len(chunks) * (chunk >> 20))
	l.work = func(units int64) error {
		for range units {
			if err := d.launch(f, blocks, blockThreads, 0, chunks[next], chunk/2/16); err != nil {
				return err
			}
			next = (next + 1) % len(chunks)
		}
		return d.wait()
	}
	return l, err
}

// copiesAcross copies between host and GPU, in both directions at once: it asks for the PCIe link, and for no SM.
func copiesAcross(d *device, _ *Kernel) (l load, err error) {
	const bytes, buffers = 8 << 20, 4 // of a unit of work, each way
	var host, stream [2]uintptr
	var gpu [2]uint64
	for way := range 2 {
		if err := d.check("cuMemAllocHost", d.HostAlloc(&host[way], bytes*buffers)); err != nil {
			return l, err
		}
		if gpu[way], err = d.alloc(bytes * buffers); err != nil {
			return l, err
		}
		if err := d.check("cuStreamCreate", d.StreamCreate(&stream[way], streamNonBlocking)); err != nil {
			return l, err
		}
	}
	l.heldMiB, l.movedMB = 2*buffers*bytes>>20, 2*bytes/1e6
	l.work = func(units int64) error {
		for u := range uint64(units) { //nolint:gosec // from 1 on
			at := u % buffers * bytes
			in := d.ToDeviceAsync(gpu[0]+at, host[0]+uintptr(at), bytes, stream[0])
			out := d.ToHostAsync(host[1]+uintptr(at), gpu[1]+at, bytes, stream[1])
			if err := errors.Join(d.check("cuMemcpyHtoDAsync", in), d.check("cuMemcpyDtoHAsync", out)); err != nil {
				return err
			}
		}
		return d.wait()
	}
	return l, d.wait()
}
