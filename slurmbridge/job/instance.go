package job

import (
	"regexp"
	"strconv"
	"strings"
)

// Instance is a MIG instance, as a GPU type of Slurm's or a model of NVML's names it.
type Instance struct {
	Parent  string // the card that it is a part of, "" = not named
	Profile string // "1g.10gb"
	Slices  int    // of seven
	GB      int    // of memory, as the profile names it
}

// instance is 1g.10gb, nvidia_a100_3g.20gb, a100l.2g.20gb, h100-1g_10gb, or "NVIDIA H100 PCIe MIG 1g.10gb+me".
var instance = regexp.MustCompile(`^(?i:(.{0,200}?)(?:[._-]| MIG ))?([1-7])g[._]([1-9][0-9]{0,2})gb((?:[+.][a-z.+]{1,20})?)$`)

// computeInstance is the beginning of a compute instance's name (1c.3g.20gb), which has no memory of its own.
var computeInstance = regexp.MustCompile(`(?:^|[._ -])[1-7]c$`)

// InstanceOf reads the name of an instance; ok is false for any other.
func InstanceOf(name string) (of Instance, ok bool) {
	m := instance.FindStringSubmatch(name)
	if m == nil || computeInstance.MatchString(m[1]) {
		return of, false
	}
	of.Slices, _ = strconv.Atoi(m[2])
	of.GB, _ = strconv.Atoi(m[3])
	of.Parent, of.Profile = strings.TrimSpace(m[1]), m[2]+"g."+m[3]+"gb"+m[4]
	return of, true
}

// SMs is which part of its card's SMs an instance has: 1g has 14 of an A100's 108 and 16 of an H100's 132, an eighth
// (NVIDIA's MIG user guide); 7g has all.
func (i Instance) SMs() float64 {
	if i.Slices == 7 {
		return 1
	}
	return float64(i.Slices) / 8
}
