package gpusim

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Limits are what MPS can hold a client to, from Volta on. Zero fields limit nothing.
type Limits struct {
	// MemMiB is the most memory the client may hold (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT).
	MemMiB float64
	// Threads is the fraction of the SMs the client may use, 0..1 (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE ÷ 100).
	Threads float64
}

// TooMuch is a demand for memory that no card meets, MiB.
const TooMuch = 1e12

// apply changes a client's solo demand, in place, to what is left of it under the limits. A phase with more memory than
// allowed fails as an allocation does. A phase with kernels that would use more SMs than allowed runs them longer by
// that factor; the time between the kernels stays (an assumption: it takes kernels to scale with the SMs they get).
func (l Limits) apply(pts []point) {
	begin, shift := 0.0, 0.0
	for i := range pts {
		p := &pts[i]
		if l.MemMiB > 0 && p.MemMiB > l.MemMiB {
			p.MemMiB = TooMuch
		}
		length := p.Until - begin
		begin = p.Until
		if l.Threads > 0 && p.Core > l.Threads {
			kernels := p.GPU * p.Core / l.Threads
			stretch := 1 - p.GPU + kernels
			p.GPU, p.Core = kernels/stretch, l.Threads
			p.PCIeMBps /= stretch
			shift += length * (stretch - 1)
		}
		p.Until += shift
	}
}

// memLimit is a device's memory limit: ordinal, number, unit.
var memLimit = regexp.MustCompile(`^(\d+)=([1-9]\d*)([KMG]?)B?$`)

// ParseLimits reads CUDA's two variables for a client's first device; empty values limit nothing. The memory limit is
// a list as "0=1G,1=512M"; a value that is not one is refused.
func ParseLimits(mem, percent string) (l Limits, err error) {
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
	mib := map[string]float64{"": 1.0 / (1 << 20), "K": 1.0 / 1024, "M": 1, "G": 1024}
	for e := range strings.SplitSeq(strings.ToUpper(mem), ",") {
		m := memLimit.FindStringSubmatch(strings.TrimSpace(e))
		if m == nil {
			return l, fmt.Errorf("pinned device memory limit %q", mem)
		}
		if m[1] == "0" {
			n, _ := strconv.ParseFloat(m[2], 64)
			l.MemMiB = n * mib[m[3]]
		}
	}
	return l, nil
}

// room is what is left of the memory of an instance (0 = of the card), MiB, and below 0 if more is held than there is.
func (v *view) room(instance int) float64 {
	left := v.MemTotal
	if instance > 0 {
		left = v.Instance[instance-1].MemTotal
	}
	for i, s := range v.present {
		if instance == 0 || s.Instance == instance {
			left -= v.now(i).MemMiB
		}
	}
	return left
}
