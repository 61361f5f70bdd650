package job

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Codes of failed changes, besides Slurm's error names.
const (
	CodeOther   = "other"    // an error without a name
	CodeNotDone = "not-done" // Slurm took the change, and the next poll doesn't show it
)

// NotDone describes a change with CodeNotDone.
const NotDone = "Slurm agreed to a change of it and didn't make it: " +
	"a plugin of the site's, or the job's owner, changed it otherwise"

// JobError is Slurm's error for one job of a failed update.
type JobError struct {
	Kind error  // ErrDown, ErrRefused or ErrNoJob
	Code string // Slurm's name of the error, ESLURM_INVALID_GRES say; CodeOther
	Text string // Slurm's words
}

// JobErrors holds, by ref, Slurm's errors for the jobs of a failed update. As an error it is of the gravest kind among
// them: ErrDown, then ErrRefused, then ErrNoJob.
type JobErrors map[string]JobError

func (e JobErrors) Error() string {
	var said []string
	for _, one := range e {
		said = append(said, one.Text)
	}
	slices.Sort(said)
	return strings.Join(slices.Compact(said), "; ")
}

// Is reports whether the gravest error is of the kind.
func (e JobErrors) Is(kind error) bool {
	gravest := error(nil)
	for _, k := range []error{ErrNoJob, ErrRefused, ErrDown} {
		for _, one := range e {
			if errors.Is(one.Kind, k) {
				gravest = k
			}
		}
	}
	return gravest != nil && errors.Is(gravest, kind)
}

// Add adds the error of a command on the given jobs. An error that names no job counts for all of them.
func (e JobErrors) Add(err error, refs []string) {
	var named JobErrors
	if err == nil || errors.As(err, &named) {
		maps.Copy(e, named)
		return
	}
	rest := JobError{Kind: ErrDown, Code: CodeOther, Text: err.Error()} // whatever it is, Slurm hasn't refused
	for _, kind := range []error{ErrNoJob, ErrRefused} {
		if errors.Is(err, kind) {
			rest.Kind = kind
		}
	}
	for _, ref := range refs {
		e[ref] = rest
	}
}

// Err returns the errors as one, nil if there are none.
func (e JobErrors) Err() error {
	if len(e) == 0 {
		return nil
	}
	return e
}

// RefusedChanges counts the failed changes of one step with one reason.
type RefusedChanges struct {
	Step Step   `json:"step"`
	Code string `json:"code"` // see JobError, CodeNotDone
	Text string `json:"text"`
	// Times counts the changes of a job, GivenUp the jobs that were left to Slurm for them; Example is the last job.
	Times   int       `json:"times"`
	GivenUp int       `json:"given_up"`
	Example string    `json:"example"`
	Last    time.Time `json:"last"`
}

// stepWords completes "Slurm refused to …".
var stepWords = map[Step]string{
	StepGate:    "put a job behind the gate",
	StepPrepare: "give a job its shares of a GPU",
	StepRelease: "let a job start in its group",
	StepRestore: "give a job back what it had",
	StepUngate:  "let a job go from the gate",
	StepExtend:  "raise a job's time limit",
	StepComment: "write a job's AdminComment",
}

// String describes the refused changes for status and doctor.
func (r *RefusedChanges) String() string {
	what := fmt.Sprintf("%s, %s in the last day", stepWords[r.Step], times(r.Times))
	text := fmt.Sprintf("Slurm refused to %s, job %s last: %s (%s)", what, r.Example, r.Text, r.Code)
	if r.Code == CodeNotDone {
		text = fmt.Sprintf("Slurm agreed to %s, and didn't do it, for job %s last", what, r.Example)
	}
	switch r.GivenUp {
	case 0:
		return text
	case 1:
		return text + ". One job was left to run without sharing"
	}
	return fmt.Sprintf("%s. %d jobs were left to run without sharing", text, r.GivenUp)
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
