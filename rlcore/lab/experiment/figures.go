package experiment

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"
)

// figure is one picture of a report.
type figure struct {
	name string
	// draw returns nil where the report has nothing to show.
	draw func(r *Report) (*sheet, error)
}

// figures lists the pictures; numbers are the thesis's.
func figures() []figure {
	out := []figure{
		{"fig01-profiles-ml", func(*Report) (*sheet, error) { return profiles("Fig. 1: ML applications alone", "vgg16", "resnet50") }},
		{"fig02-profiles-hpc", func(*Report) (*sheet, error) { return profiles("Fig. 2: HPC applications alone", "lammps", "qmcpack") }},
		{"fig03-pairs", (*Report).pairsSheet},
	}
	for i, wl := range Workloads() {
		out = append(out, figure{
			fmt.Sprintf("fig%d-%s", 10+i, wl),
			func(r *Report) (*sheet, error) { return r.overTime(fmt.Sprintf("Fig. %d", 10+i), wl) },
		})
	}
	return append(
		out,
		figure{"fig15-slowdowns", (*Report).classes},
		figure{"fig16-training", (*Report).training},
		figure{"fig17-cost", (*Report).costs},
		figure{"makespans", (*Report).makespans},
		figure{"trade-off", (*Report).tradeOffCurve},
	)
}

// Figures draws the report: one picture in dir for every figure of the thesis that
// there is something to show of, one of all makespans and one of the trade-off.
// Format is "png" or "svg". What the report lacks, a policy or a whole workload, is
// left out. It returns the paths written, in the figures' order, also beside an
// error. The same report gives the same pictures.
func (r *Report) Figures(dir, format string) ([]string, error) {
	if format != "png" && format != "svg" {
		return nil, fmt.Errorf("figures: there is no format %q; there are png and svg", format)
	}
	//nolint:gosec // pictures are for everybody
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("figures: make folder %s: %w", dir, err)
	}
	var paths []string
	for _, f := range figures() {
		s, err := f.draw(r)
		if err != nil {
			return paths, fmt.Errorf("figures: draw %s: %w", f.name, err)
		}
		if s == nil {
			continue
		}
		data, err := s.render(format)
		if err != nil {
			return paths, fmt.Errorf("figures: draw %s: %w", f.name, err)
		}
		path := filepath.Join(dir, f.name+"."+format)
		if err := renameio.WriteFile(path, data, 0o644); err != nil {
			return paths, fmt.Errorf("figures: write %s: %w", path, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// lines returns a workload's lines and their policies in the order of a table.
func (r *Report) lines(wl string) ([]string, map[string]*Line) {
	have := map[string]*Line{}
	for name, l := range r.Workloads[wl] {
		if l != nil {
			have[name] = l
		}
	}
	return inOrder(slices.Collect(maps.Keys(have))), have
}

// inOrder sorts policies as Names does; the clairvoyant comes after them, and then
// others by name.
func inOrder(names []string) []string {
	known := append(Names(), Clairvoyant)
	rank := func(n string) int {
		if i := slices.Index(known, n); i >= 0 {
			return i
		}
		return len(known)
	}
	slices.Sort(names)
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	return names
}
