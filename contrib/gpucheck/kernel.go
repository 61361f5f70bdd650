package main

import (
	"errors"
	"math"
	"time"
)

// load is what a kernel does on the GPU.
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

// kernelClient is a client whose step is a kernel's busy part: units of work of the kernel's own kind, run to their
// end. The work is fixed beforehand, so that a step next to other kernels takes as much longer as they slow it.
type kernelClient struct {
	gpuClient
	*Kernel
	load load
}

// Open implements works. It finds the work where that is 0.
func (k *kernelClient) Open(a *answer) (err error) {
	if err := k.context(a); err != nil {
		return err
	}
	if k.load, err = loads[k.Source](k.d, k.Kernel); err != nil {
		return err
	}
	if k.work == 0 {
		k.work, err = k.load.find(k.busy())
	} else {
		err = k.load.work(1) // compiles, where that is still to be done
	}
	a.Work, a.HeldMiB, a.StepMB = k.work, k.load.heldMiB, k.work*k.load.movedMB
	return err
}

// Step implements works.
func (k *kernelClient) Step(bool) (right bool, busy time.Duration, err error) {
	from := time.Now()
	err = k.load.work(int64(k.work))
	return true, time.Since(from), err
}

// find returns the units of work that take so long. What the first calls cost (compiling for this card, clocks that
// rise) is gone through before.
func (l *load) find(target time.Duration) (float64, error) {
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
			return max(1, math.Round(float64(units)*target.Seconds()/took.Seconds())), nil
		}
	}
}
