package trace

import (
	"io"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// UnknownDurationS is DurationS of a profile from a file without durations, s: predictions for a
// constant profile don't depend on it. No duration in a file is as short, so HasDuration can
// distinguish them.
const UnknownDurationS = minDurationS / 10

// coreShare is the fraction of the SMs that are assumed busy while a kernel runs,
// as rlcore/apps assumes.
const coreShare = 0.85

// ReadProfiles reads profiles as table.ReadProfiles does. app and gpu_util must be
// there. An empty duration_s becomes UnknownDurationS (jobs then need durations of
// their own; see HasDuration), an empty sm_util 0.85 of gpu_util.
func ReadProfiles(r io.Reader, name string) ([]*rlcore.Profile, error) {
	return table.ReadProfiles(r, name, &table.ProfileRules{
		Columns: []string{"app", "gpu_util"}, Values: []string{"gpu_util"},
		DurationS: UnknownDurationS, CoreShare: coreShare, MinStepMS: 1e-6, Source: name,
	})
}

// HasDuration reports whether the profile's file gave its duration.
func HasDuration(p *rlcore.Profile) bool { return p.DurationS > UnknownDurationS }
