package gpusim

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Limits are what MPS can hold a client to, from Volta on. Zero fields limit
// nothing.
type Limits struct {
	// MemMiB is the most memory the client may hold (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT).
	MemMiB float64
	// Threads is the fraction of the SMs the client may use, 0..1
	// (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE ÷ 100).
	Threads float64
}

// TooMuch is a demand for memory that no card meets, MiB.
const TooMuch = 1e12

// apply changes a client's solo demand, in place, to what is left of it under the limits. A phase
// with more memory than allowed fails as an allocation does. A phase with kernels that would use
// more SMs than allowed runs them longer by that factor; the time between the kernels stays (an
// assumption: it takes kernels to scale with the SMs they get).
func (l *Limits) apply(pts []point) {
	begin, shift := 0.0, 0.0
	for i := range pts {
		p := &pts[i]
		if l.MemMiB > 0 && p.Mem > l.MemMiB {
			p.Mem = TooMuch
		}
		length := p.Until - begin
		begin = p.Until
		if l.Threads > 0 && p.Core > l.Threads {
			kernels := p.GPU * p.Core / l.Threads
			stretch := 1 - p.GPU + kernels
			p.GPU, p.Core = kernels/stretch, l.Threads
			p.PCIe /= stretch
			shift += length * (stretch - 1)
		}
		p.Until += shift
	}
}

// ParseLimits reads CUDA's two variables for a client's device of the given
// ordinal; empty values limit nothing. The memory limit is a list as
// "0=1G,1=512M"; a value that is not one is refused.
func ParseLimits(mem, percent string, ordinal int) (Limits, error) {
	var l Limits
	if percent != "" {
		p, err := strconv.ParseFloat(percent, 64)
		if err != nil || !(p > 0 && p <= 100) {
			return l, fmt.Errorf("active thread percentage %q", percent)
		}
		l.Threads = p / 100
	}
	if mem == "" {
		return l, nil
	}
	for _, e := range strings.Split(mem, ",") {
		dev, size, ok := strings.Cut(strings.TrimSpace(e), "=")
		n, err := strconv.Atoi(dev)
		mib, serr := parseSize(size)
		if !ok || err != nil || serr != nil {
			return l, fmt.Errorf("pinned device memory limit %q", mem)
		}
		if n == ordinal {
			l.MemMiB = mib
		}
	}
	return l, nil
}

// parseSize reads a number with K, M or G, with or without a B, as MiB.
func parseSize(s string) (float64, error) {
	s = strings.TrimSuffix(strings.ToUpper(s), "B")
	if s == "" {
		return 0, strconv.ErrSyntax
	}
	units := map[byte]float64{'K': 1.0 / 1024, 'M': 1, 'G': 1024}
	unit, ok := units[s[len(s)-1]]
	if ok {
		s = s[:len(s)-1]
	} else {
		unit = 1.0 / (1 << 20)
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v > 0) || v > 1e12 {
		return 0, strconv.ErrSyntax
	}
	return v * unit, nil
}

// allows reports whether a process that takes so much more memory, MiB, stays within the limits of its control groups.
func (v *view) allows(pid int32, more float64) bool {
	for i := range v.rec.Limit {
		l := &v.rec.Limit[i]
		group := cString(l.Group[:])
		if group == "" {
			continue
		}
		in := processes(group)
		if !slices.Contains(in, pid) {
			continue
		}
		sum := more
		for k, s := range v.present {
			if slices.Contains(in, s.Pid) {
				sum += v.now(k).Mem
			}
		}
		if sum > l.Hard {
			return false
		}
	}
	return true
}

// processes are those of a control group and of the groups in it.
func processes(group string) (pids []int32) {
	_ = filepath.WalkDir(group, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != "cgroup.procs" {
			return nil //nolint:nilerr // a group that goes away has none
		}
		text, _ := os.ReadFile(path)
		for _, f := range strings.Fields(string(text)) {
			if pid, err := strconv.ParseInt(f, 10, 32); err == nil {
				pids = append(pids, int32(pid))
			}
		}
		return nil
	})
	return pids
}
