package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"time"

	"github.com/spf13/cobra"
)

// load is what a kernel's program does on the GPU.
type load struct {
	heldMiB float64                 // device memory
	movedMB float64                 // over PCIe, both directions, by a unit of work, MB of 1e6 bytes
	work    func(units int64) error // does so many units and waits for their end
}

// blockThreads is how many threads a block of the arithmetic and of the copies has.
const blockThreads = 512

// loads makes the loads, by a kernel's source.
var loads = map[string]func(d *device, k *Kernel) (load, error){
	"compute": computes, "memory": copiesWithin, "pcie": copiesAcross,
}

// computes is arithmetic in registers: it asks for SMs and for nothing else. On a part of the SMs one block is launched
// for each, with so much shared memory that no second one fits there.
func computes(d *device, k *Kernel) (l load, err error) {
	f, err := d.function("multiply_add")
	if err != nil {
		return l, err
	}
	blocks, shared := d.sms*max(1, d.attribute(threadsOfSM)/blockThreads), 0
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
	var chunks []uint64
	for range max(1, int(math.Round(k.MemMiB/(chunk>>20)))) {
		at, aerr := d.alloc(chunk)
		if err == nil {
			err = aerr
		}
		chunks = append(chunks, at)
	}
	if err == nil {
		err = d.wait()
	}
	next, blocks := 0, d.sms*max(1, d.attribute(threadsOfSM)/blockThreads)
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
		for _, s := range stream {
			if err := d.check("cuStreamSynchronize", d.StreamSync(s)); err != nil {
				return err
			}
		}
		return nil
	}
	return l, d.wait()
}

// newKernel is the command that is a kernel's program: gpucheck starts itself as each.
//
// An iteration is a busy part (work units of the program's own kind, run to their end) and, where the duty is under 1,
// a pause of the host of (1 - duty) * period. The work is fixed beforehand, so that an iteration next to other kernels
// takes as much longer as they slow it. The program finds the work where it is 0, prints a line, waits for a line on
// standard input and iterates. At the end it prints another line. It ends early when its standard input is closed: the
// program that started it has gone, or gives up.
func newKernel(in io.Reader, out io.Writer) *cobra.Command {
	var periodMS, seconds float64
	k := &Kernel{}
	c := &cobra.Command{
		Use: "kernel NAME", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			known, err := catalogue(nil, args)
			if err != nil {
				return err
			}
			part := func(v float64) bool { return v > 0 && v <= 1 }
			if !(part(k.Duty) && part(k.SMs) && periodMS > 0 && seconds > 0 && k.MemMiB >= 0 && k.work >= 0) {
				return fmt.Errorf("--duty %v --period-ms %v --seconds %v --sms %v --mem-mib %v --work %v makes no sense",
					k.Duty, periodMS, seconds, k.SMs, k.MemMiB, k.work)
			}
			k.Period = time.Duration(periodMS * float64(time.Millisecond))
			runtime.LockOSThread()
			lib, err := openCUDA()
			if err != nil {
				return err
			}
			d, err := lib.open()
			if err != nil {
				return err
			}
			l, err := loads[known[0].Source](d, k)
			if err != nil {
				return err
			}
			return k.iterate(l, time.Duration(seconds*float64(time.Second)), in, out)
		},
	}
	f := c.Flags()
	f.Float64Var(&k.Duty, "duty", 1, "part of an iteration in which the GPU is at work")
	f.Float64Var(&periodMS, "period-ms", 5, "length of an iteration")
	f.Float64Var(&seconds, "seconds", 2, "how long to iterate")
	f.Float64Var(&k.SMs, "sms", 1, "part of the SMs")
	f.Float64Var(&k.MemMiB, "mem-mib", 0, "device memory")
	f.Float64Var(&k.work, "work", 0, "units of work in an iteration; 0 = to be found")
	return c
}

// iterate plays the program. The first tenth of the time, in which clocks rise, doesn't count.
func (k *Kernel) iterate(l load, lasts time.Duration, in io.Reader, out io.Writer) error {
	work := int64(k.work)
	err := error(nil)
	if work == 0 {
		work, err = l.find(time.Duration(k.Duty * float64(k.Period)))
	} else {
		err = l.work(1) // compiles, where that is still to be done
	}
	if err != nil {
		return err
	}
	say := json.NewEncoder(out)
	if err := say.Encode(line{Work: float64(work)}); err != nil {
		return err
	}
	lines := bufio.NewReader(in)
	if _, err := lines.ReadString('\n'); err != nil {
		return nil // nobody wants it any more
	}
	alone := make(chan struct{})
	go func() { _, _ = lines.ReadByte(); close(alone) }()
	var n int64
	begin := time.Now()
	from, to, busy := begin, begin, time.Duration(0)
	for to.Sub(begin) < lasts {
		if to.Sub(begin) < lasts/10 {
			n, busy, from = 0, 0, to
		}
		at := time.Now()
		if err := l.work(work); err != nil {
			return err
		}
		busy += time.Since(at)
		n++
		select {
		case <-alone:
			lasts = 0
		case <-time.After(time.Duration((1 - k.Duty) * float64(k.Period))):
		}
		to = time.Now()
	}
	return say.Encode(line{
		N: float64(n), Seconds: to.Sub(from).Seconds(), BusyS: busy.Seconds(), MovedMB: float64(n*work) * l.movedMB,
		HeldMiB: l.heldMiB,
	})
}

// find returns the units of work that take so long. What the first calls cost (compiling for this card, clocks that
// rise) is gone through before.
func (l *load) find(target time.Duration) (int64, error) {
	for from := time.Now(); time.Since(from) < 500*time.Millisecond; {
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
			return max(1, int64(math.Round(float64(units)*target.Seconds()/took.Seconds()))), nil
		}
	}
}
