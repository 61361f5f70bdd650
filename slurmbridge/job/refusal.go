package job

import (
	"fmt"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Refusal is one combination with a job that the guard did not allow, and why.
type Refusal struct {
	With   []string // the other waiting jobs, by ref; none = alone, or with the jobs that run there
	Node   string
	GPU    int
	Reason rlcore.Refusal
	// text is a refusal read from JSON, which holds the sentence only.
	text string
}

// String renders the refusal for `why`, the status page and JSON.
func (r Refusal) String() string {
	if r.text != "" {
		return r.text
	}
	company := "alone or joining"
	if len(r.With) > 0 {
		company = "with " + strings.Join(r.With, ", ")
	}
	return fmt.Sprintf("%s on %s gpu %d: %s", company, r.Node, r.GPU, r.Reason)
}

// MarshalText makes JSON hold the sentence, as `why --json` documents it.
func (r Refusal) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText keeps the sentence; it is never taken apart.
func (r *Refusal) UnmarshalText(text []byte) error {
	*r = Refusal{text: string(text)}
	return nil
}
