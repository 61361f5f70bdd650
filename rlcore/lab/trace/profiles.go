package trace

import (
	"fmt"
	"io"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// UnknownDurationS is DurationS of a profile whose file gives none, s: what is
// predicted of a constant profile doesn't depend on it. No duration that a file
// gives is as short, so HasDuration can tell.
const UnknownDurationS = minDurationS / 10

// coreShare is the fraction of the SMs that are assumed busy while a kernel runs,
// as rlcore/apps assumes.
const coreShare = 0.85

// ReadProfiles reads CSV with the columns app, gpu_util and, where the file has
// them, duration_s, mem_util, mem_mib, sm_util, pcie_mbps and step_ms. An
// application may stand there once.
//
// Each profile is constant: one point that lasts for the whole run. Utilisations
// are in percent, 0..100. What is empty is stood in for: duration_s by
// UnknownDurationS (jobs then need durations of their own; see HasDuration),
// sm_util by 0.85 of gpu_util, mem_mib and pcie_mbps by 0 (such a profile never
// fails for want of memory, nor waits for the link), step_ms by 0, unknown.
// mem_util, how busy the memory controller is, must be sound and is not used:
// rlcore.Use has no such resource.
func ReadProfiles(r io.Reader, name string) ([]*rlcore.Profile, error) {
	const mostMiB, mostMBps, mostMS = 1e7, 1e7, 1e9
	var profiles []*rlcore.Profile
	seen := map[string]bool{}
	err := table.ReadCSV(r, name, []string{"app", "gpu_util"}, func(t *table.Row) {
		app := t.Name("app")
		gpu := t.Number("gpu_util", 0, 100)
		t.NumberOr("mem_util", 0, 100, 0)
		duration := t.NumberOr("duration_s", minDurationS, maxDurationS, UnknownDurationS)
		p := &rlcore.Profile{
			App:       app,
			DurationS: duration,
			PeriodS:   duration,
			Series: []rlcore.Use{{
				GPU:      gpu / 100,
				Core:     t.NumberOr("sm_util", 0, 100, coreShare*gpu) / 100,
				MemMiB:   t.NumberOr("mem_mib", 0, mostMiB, 0),
				PCIeMBps: t.NumberOr("pcie_mbps", 0, mostMBps, 0),
			}},
			StepS:  t.NumberOr("step_ms", 1e-6, mostMS, 0) / 1000,
			Source: name,
		}
		if seen[app] {
			t.Fail("app", fmt.Errorf("%.40q %w", app, table.ErrTwice))
		}
		seen[app] = true
		if t.Err() == nil {
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

// HasDuration reports whether the profile's file gave its duration.
func HasDuration(p *rlcore.Profile) bool { return p.DurationS > UnknownDurationS }
