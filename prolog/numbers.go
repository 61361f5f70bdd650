package prolog

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/slurmbridge/pattern"
)

// Slurm numbers a node's GPUs. Which card a number means follows from its configuration (src/interfaces/gres.c,
// src/plugins/gres/gpu/gres_gpu.c, read at 22.05.8, 24.11.5 and 26.05.3):
//
//   - gres.conf names device files: the number is the place among them, in the order of slurm.conf's types and then of
//     gres.conf's lines (_merge_config).
//   - AutoDetect=nvml: whole GPUs in NVML's order, by PCI bus, then MIG instances by their files
//     (_sort_gpu_by_links_order, _sort_gpu_by_file). AutoDetect=nvidia: by their files; it knows no instances.
//   - Where a job can reach all GPUs, it computes on the one that CUDA calls by this number, in PCI order, whatever
//     gres.conf says: jobs of whole GPUs do, and so must sharers.
//
// A job of shares of a MIG instance gets the number alone: _create_shared_rec of gres.c doesn't copy the UUID.
//
// A Slurm built without NVML treats AutoDetect=nvml as off, and AutoDetect=full takes what it finds. If Slurm could
// have numbered the cards in more than one way, a number maps to no card. Nor does it after GPUs were cut into
// instances that the agent hasn't listed.

// number sets the index of each card that one of Slurm's numbers certainly means. It returns how many of Slurm's
// numbers are left.
func (s *site) number(cards []Card, proc string) (uncertain int) {
	caps := migCaps(proc)
	stale := staleCards(cards, proc)
	for i := range cards {
		c := &cards[i]
		c.Index, c.files = unknown, caps[instance{c.Minor, c.GI, c.CI}]
	}
	orders := s.orders(cards)
	most := 0
	for _, o := range orders {
		most = max(most, len(o))
	}
	for n := range most {
		at := func(o []int) int {
			if n < len(o) {
				return o[n]
			}
			return unknown
		}
		first := at(orders[0])
		certain := first != unknown && !stale(cards[first])
		if certain && !slices.ContainsFunc(orders, func(o []int) bool { return at(o) != first }) {
			cards[first].Index = n
		} else {
			uncertain++
		}
	}
	return uncertain
}

// orders returns the ways in which Slurm may have numbered the cards, each as positions in cards by number.
func (s *site) orders(cards []Card) [][]int {
	byFile := s.detected(cards, func(a, b Card) int { return cmp.Compare(a.Minor, b.Minor) })
	byBus := s.detected(cards, func(a, b Card) int { return cmp.Compare(a.NVMLIndex, b.NVMLIndex) })
	named := s.named(cards)
	var orders [][]int
	switch {
	case s.detect == "" && named != nil:
		return [][]int{s.reached(named, cards)}
	case s.detect == "", strings.Contains(s.detect, "full"):
		orders = [][]int{s.reached(byBus, cards), s.reached(byFile, cards)}
	case strings.Contains(s.detect, "nvml"):
		orders = [][]int{s.reached(byBus, cards)}
	case strings.Contains(s.detect, "nvidia") && !slices.ContainsFunc(cards, Card.mig):
		return [][]int{s.reached(byFile, cards)}
	default:
		return nil // cards of other makers, or GPUs in MIG mode, which AutoDetect=nvidia hands out whole
	}
	if named != nil {
		orders = append(orders, s.reached(named, cards))
	}
	return orders
}

// reached returns the cards on which jobs compute: own, Slurm's order, if Slurm confines jobs to their devices,
// otherwise CUDA's order. CUDA numbers identical cards by PCI bus. Its order is unknown if cards differ, if one is
// lost, and for MIG instances.
func (s *site) reached(own []int, cards []Card) []int {
	var there []int
	for i, c := range cards {
		if s.constrains || c.mig() || c.Lost || c.Model != cards[0].Model {
			return own
		}
		there = append(there, i)
	}
	slices.SortFunc(there, func(a, b int) int { return cmp.Compare(cards[a].NVMLIndex, cards[b].NVMLIndex) })
	out := slices.Clone(own)
	for n := range out {
		if out[n] = unknown; n < len(there) {
			out[n] = there[n]
		}
	}
	return out
}

// named returns the cards that gres.conf names by device files, in Slurm's order; nil if it names none.
func (s *site) named(cards []Card) []int {
	place := func(files []string) int {
		minor := unknown
		caps := []string{}
		for _, f := range files {
			if n, ok := minorOf(f); ok {
				minor = n
			} else if name := filepath.Base(f); strings.HasPrefix(name, capFiles) {
				caps = append(caps, name)
			}
		}
		found := unknown
		for i, c := range cards {
			// gres.conf names an instance by the capability files of its GPU instance and its compute instance.
			anothers := func(f string) bool { return f != capFile(c.files.gi) && f != capFile(c.files.ci) }
			if c.Minor != minor || c.mig() != (len(caps) > 0) || c.mig() && slices.ContainsFunc(caps, anothers) {
				continue
			}
			if found != unknown {
				return unknown // several instances have these files
			}
			found = i
		}
		return found
	}
	lines := slices.Clone(s.lines)
	var out []int
	take := func(kind string, count int) {
		for i := range lines {
			if kind != "" && !strings.EqualFold(lines[i].kind, kind) {
				continue
			}
			for ; count > 0 && len(lines[i].devices) > 0; count-- {
				out = append(out, place(lines[i].devices[0]))
				lines[i].devices = lines[i].devices[1:]
			}
		}
	}
	if s.wanted == nil {
		take("", math.MaxInt)
	}
	for _, w := range s.wanted {
		take(w.kind, w.count)
	}
	return out
}

// detected returns the cards that Slurm detects: whole cards sorted by order, then MIG instances.
func (s *site) detected(cards []Card, order func(a, b Card) int) []int {
	var all []int
	want := 0
	working := 0
	for _, w := range s.wanted {
		want += w.count
	}
	for _, c := range cards {
		if !c.Lost {
			working++
		}
	}
	for i, c := range cards {
		// slurmd knows a card that was lost after slurmd's start; slurm.conf then wants more cards than work. It knows no
		// instance without files.
		if (!c.Lost || s.wanted == nil || want > working) && !(c.mig() && c.files == (access{})) {
			all = append(all, i)
		}
	}
	if s.wanted != nil && want < len(all) {
		// Slurm takes the cards of a wanted type in the order of their files.
		all = s.chosen(all, cards)
	}
	slices.SortFunc(all, func(a, b int) int {
		switch x, y := cards[a], cards[b]; {
		case x.mig() && y.mig():
			return byFiles(x, y)
		case x.mig():
			return 1
		case y.mig():
			return -1
		default:
			return order(x, y)
		}
	})
	return all
}

// byFiles compares cards by the natural order of their files, "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap12,…".
func byFiles(a, b Card) int {
	return cmp.Or(cmp.Compare(a.Minor, b.Minor), cmp.Compare(a.files.gi, b.files.gi), cmp.Compare(a.files.ci, b.files.ci))
}

// chosen returns as many cards as slurm.conf wants, matching its types, the longest name first
// (_normalize_sys_gres_types).
func (s *site) chosen(all []int, cards []Card) (out []int) {
	wanted := slices.SortedStableFunc(slices.Values(s.wanted),
		func(a, b gpuCount) int { return len(b.kind) - len(a.kind) })
	all = slices.SortedStableFunc(slices.Values(all), func(a, b int) int { return byFiles(cards[a], cards[b]) })
	for _, w := range wanted {
		for left := w.count; left > 0; left-- {
			i := slices.IndexFunc(all, func(i int) bool {
				name := strings.ReplaceAll(strings.ToLower(cards[i].Model), " ", "_")
				name = strings.Replace(name, "_mig_", "_", 1) // _handle_mig of gpu_nvml.c
				return strings.Contains(name, strings.ToLower(w.kind))
			})
			if i < 0 {
				break
			}
			out = append(out, all[i])
			all = slices.Delete(all, i, i+1)
		}
	}
	return out
}

// nvidiaMajor is the device number of NVIDIA's GPUs (Linux's devices.txt).
const nvidiaMajor = 195

var nvidiaFile = pattern.Lazy(`^nvidia(\d+)$`)

// minorOf returns N of a device file nvidiaN, by its device number or else its name.
func minorOf(file string) (int, bool) {
	var st unix.Stat_t
	if unix.Stat(file, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && unix.Major(st.Rdev) == nvidiaMajor {
		return int(unix.Minor(st.Rdev)), true
	}
	m := nvidiaFile().FindStringSubmatch(filepath.Base(file))
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(m[1])
	return n, err == nil
}

// instance identifies a MIG instance by the minor number of its GPU, its GPU instance and its compute instance.
type instance struct{ gpu, gi, ci int }

const capFiles = "nvidia-cap"

func capFile(n int) string { return capFiles + strconv.Itoa(n) }

var migAccess = pattern.Lazy(`(?m)^gpu(\d+)/gi(\d+)/(?:ci(\d+)/)?access (\d+)$`)

// migCaps returns the driver's capability files by instance, including instances that don't exist at the moment.
func migCaps(proc string) map[instance]access {
	text, err := os.ReadFile(filepath.Join(cmp.Or(proc, "/proc"), "driver/nvidia-caps/mig-minors"))
	if err != nil {
		return nil
	}
	gis := map[instance]int{}
	out := map[instance]access{}
	for _, m := range migAccess().FindAllStringSubmatch(string(text), -1) {
		var n [4]int
		for i := range n {
			n[i], _ = strconv.Atoi(m[1+i]) // no device has a number too large for int
		}
		if of := (instance{n[0], n[1], n[2]}); m[3] == "" {
			gis[of] = n[3]
		} else {
			out[of] = access{ci: n[3]}
		}
	}
	for of, a := range out {
		a.gi = gis[instance{gpu: of.gpu, gi: of.gi}]
		out[of] = a
	}
	return out
}

// Cut lists the node's MIG instances as the driver shows them under proc ("" = /proc), by their GPU's minor number:
// "gpu0/mig/gi7/ci0 gpu0/mig/gi8/ci0" (os.c, nv-caps.c of NVIDIA's open kernel modules). Reading it opens no GPU.
// Instances that are made again in the same way have the same UUIDs, since the driver derives the UUID from the GPU,
// the GPU instance's number and the engine of its compute instance (nvGenerateSmcUuid).
func Cut(proc string) string {
	folder := filepath.Join(cmp.Or(proc, "/proc"), "driver/nvidia/capabilities")
	found, _ := filepath.Glob(filepath.Join(folder, "gpu*/mig/gi*/ci*")) // the pattern is good
	for i := range found {
		found[i] = strings.TrimPrefix(found[i], folder+"/")
	}
	return strings.Join(found, " ")
}

// staleCards returns a function that reports whether a card's GPU was cut into other instances since it was listed.
func staleCards(cards []Card, proc string) func(Card) bool {
	var listed []string
	there := strings.Fields(Cut(proc))
	for _, c := range cards {
		if c.mig() {
			listed = append(listed, fmt.Sprintf("gpu%d/mig/gi%d/ci%d", c.Minor, c.GI, c.CI))
		}
	}
	slices.Sort(listed)
	slices.Sort(there)
	same := slices.Equal(listed, there)
	return func(c Card) bool {
		of := fmt.Sprintf("gpu%d/", c.Minor)
		return !same && (c.mig() || slices.ContainsFunc(there, func(i string) bool { return strings.HasPrefix(i, of) }))
	}
}
