package compare

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// The pages' picture of two timelines is what the demo draws: testdata/demo.json is what `make demo` wrote beside it.
// SLURMBRIDGE_WRITE_DOC=1 draws it anew.
func TestPictureOfThePages(t *testing.T) {
	const picture = "../../doc/demo.svg"
	var r demoReport
	must.OK(t, json.Unmarshal(must.Get(os.ReadFile("testdata/demo.json"))(t), &r))
	if os.Getenv("SLURMBRIDGE_WRITE_DOC") != "" {
		must.OK(t, os.WriteFile(picture, r.picture(), 0o644))
	}
	got := string(must.Get(os.ReadFile(picture))(t))
	must.Equal(t, got, string(r.picture()))
	must.Equal(t, strings.Contains(got, "var("), false, "variables, which librsvg doesn't know")
	must.Equal(t, [2]int{r.Later, r.Bridged.JobsCompleted}, [2]int{0, 30}, "jobs that ended later, and that completed")
	// Every job is there twice, and jobs of whole GPUs don't share.
	for _, what := range []string{"<title>job 1, ", "<title>job 30, "} {
		must.Equal(t, strings.Count(got, what), 2, what)
	}
	whole, shared, _ := strings.Cut(got, ">shared<")
	if strings.Contains(whole, `class="two"`) || !strings.Contains(shared, `class="two"`) ||
		!strings.Contains(shared, `class="three"`) {
		t.Error("which jobs share isn't to be seen")
	}
}
