// Package trace reads what a replay, a training or a scoring is given as files: jobs
// (CSV, the Standard Workload Format, sacct's output), solo profiles, and slowdowns
// measured in pairs. Package table says what is expected of CSV and of errors.
package trace

import "github.com/slurmbridge/slurmbridge/rlcore/table"

// Bounds beyond which a value is taken for a mistake, not for a measurement.
const (
	minDurationS = table.MinDurationS
	maxDurationS = table.MaxDurationS
	maxSubmitS   = 1e11 // seconds since 1970 in the year 5138
	maxName      = 256  // bytes
	maxGPUs      = 1e6
)

// Error names a value of a file that can't be used, and why.
type Error = table.Error

// Skipped counts the rows that are sound but no use to a replay, by the reason.
type Skipped = table.Skipped
