package experiment

import (
	"fmt"
	"image/color"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/figure"
)

// picture is one of a report's.
type picture struct {
	name string
	// draw returns nil where the report has nothing to show.
	draw func(r *Report) *figure.Sheet
}

// pictures lists them; numbers are the thesis's.
func pictures() []picture {
	out := []picture{
		{"fig01-profiles-ml", func(*Report) *figure.Sheet { return profiles("Fig. 1: ML applications alone", "vgg16", "resnet50") }},
		{"fig02-profiles-hpc", func(*Report) *figure.Sheet { return profiles("Fig. 2: HPC applications alone", "lammps", "qmcpack") }},
		{"fig03-pairs", (*Report).pairsSheet},
	}
	for i, wl := range Workloads() {
		out = append(out, picture{
			fmt.Sprintf("fig%d-%s", 10+i, wl),
			func(r *Report) *figure.Sheet { return r.overTime(fmt.Sprintf("Fig. %d", 10+i), wl) },
		})
	}
	return append(
		out,
		picture{"fig15-slowdowns", (*Report).classes},
		picture{"fig16-training", (*Report).training},
		picture{"fig17-cost", (*Report).costs},
		picture{"makespans", (*Report).makespans},
		picture{"trade-off", (*Report).tradeOffCurve},
	)
}

// Figures draws the report: one picture in dir for every figure of the thesis that the report has
// data for, one of all makespans and one of the trade-off. Format is "png" or "svg". Missing
// policies and workloads are left out. It returns the paths written, in the figures' order, even
// with an error. The same report gives the same pictures.
func (r *Report) Figures(dir, format string) ([]string, error) {
	if !slices.Contains(figure.Formats, format) {
		return nil, fmt.Errorf("figures: there is no format %q; there are %s", format, strings.Join(figure.Formats, " and "))
	}
	//nolint:gosec // pictures are public
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("figures: make folder %s: %w", dir, err)
	}
	var paths []string
	for _, p := range pictures() {
		sheet := p.draw(r)
		if sheet == nil {
			continue
		}
		path := filepath.Join(dir, p.name+"."+format)
		if err := sheet.Write(path); err != nil {
			return paths, fmt.Errorf("figures: %w", err)
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

// inOrder sorts policies as Names does; the clairvoyant comes after them, and then the rest by
// name.
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

// policyColour is a policy's colour in all figures; white where it isn't known.
func policyColour(name string) color.Color {
	if s, ok := policy.Named(name); ok {
		return s.Colour
	}
	if name == Clairvoyant {
		return figure.Ink
	}
	return figure.White
}
