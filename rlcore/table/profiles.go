package table

import (
	"fmt"
	"io"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// ProfileRules say what a file of solo profiles must hold, and what stands in for a value that is empty.
type ProfileRules struct {
	Columns []string // must be in the header
	Values  []string // must be in every row

	DurationS  float64
	GPUPercent float64
	CoreShare  float64 // SM use, as a part of gpu_util
	MinStepMS  float64 // the least that is taken for step_ms
	Source     string  // of the profiles
}

// Bounds of a run's duration, s: less is shorter than a process takes to start, more is some 30 years.
const (
	MinDurationS = 0.01
	MaxDurationS = 1e9
)

// ReadProfiles reads CSV with the columns app, duration_s, gpu_util, mem_util, mem_mib, sm_util, pcie_mbps and step_ms.
// Utilisations are in percent, 0..100. An application may stand there once. name is the file's name for messages.
//
// Each profile is constant: one point that lasts for the whole run. Where the rules have nothing for an empty value it
// is 0: such a profile never fails for want of memory, nor waits for the link, and its step is not known.
func ReadProfiles(r io.Reader, name string, rules *ProfileRules) ([]*rlcore.Profile, error) {
	const mostMiB, mostMBps, mostMS = 1e7, 1e7, 1e9
	var profiles []*rlcore.Profile
	seen := map[string]bool{}
	err := ReadCSV(r, name, rules.Columns, func(t *Row) {
		number := func(col string, lo, hi, empty float64) float64 {
			switch {
			case !slices.Contains(rules.Values, col):
			case col == "gpu_util" && t.Text(col) == "":
				t.Fail(col, fmt.Errorf("%w: it is the part of the run in which a kernel ran, in percent (nvidia-smi's "+
					"utilization.gpu, on average); leave an application out for which it isn't known", ErrMissing))
				return 0
			default:
				return t.Number(col, lo, hi)
			}
			return t.NumberOr(col, lo, hi, empty)
		}
		app := t.Name("app")
		gpu := number("gpu_util", 0, 100, rules.GPUPercent)
		duration := number("duration_s", MinDurationS, MaxDurationS, rules.DurationS)
		p := &rlcore.Profile{
			App: app, DurationS: duration, PeriodS: duration, Source: rules.Source,
			Series: []rlcore.Use{{
				GPU:      gpu / 100,
				Core:     number("sm_util", 0, 100, rules.CoreShare*gpu) / 100,
				MemMiB:   number("mem_mib", 0, mostMiB, 0),
				PCIeMBps: number("pcie_mbps", 0, mostMBps, 0),
				MemBusy:  number("mem_util", 0, 100, 0) / 100,
			}},
			StepS: number("step_ms", rules.MinStepMS, mostMS, 0) / 1000,
		}
		if seen[app] {
			t.Fail("app", fmt.Errorf("%.40q %w", app, ErrTwice))
		}
		seen[app] = true
		if t.err == nil {
			if err := p.Validate(); err != nil {
				t.Fail("", err)
			}
		}
		profiles = append(profiles, p)
	})
	if err != nil {
		return nil, err
	}
	return profiles, nil
}
