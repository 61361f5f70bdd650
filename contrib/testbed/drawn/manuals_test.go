package drawn

import (
	"bufio"
	"compress/gzip"
	_ "embed"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

//go:embed leftout.tsv
var leftOutTSV string

var (
	manualOption  = regexp.MustCompile(`--[a-z0-9][a-z0-9-]*`)
	manualSetting = regexp.MustCompile(`^[A-Z][A-Za-z]+\b`)
	roff          = regexp.MustCompile(`\\f.`)
)

// manual lists the options, or settings, that a manual page explains: each is the line after a .TP. Where the page
// isn't installed it skips the test.
func manual(t *testing.T, path string, options bool) (out []string) {
	file, err := os.Open(path)
	if err != nil {
		t.Skip(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(must.Get(gzip.NewReader(file))(t))
	tag := false
	for lines.Scan() {
		text := strings.ReplaceAll(roff.ReplaceAllString(lines.Text(), ""), `\-`, "-")
		switch {
		case !tag:
		case options && strings.HasPrefix(text, "-"):
			out = append(out, manualOption.FindString(text))
		case !options && strings.HasPrefix(lines.Text(), `\fB`):
			out = append(out, manualSetting.FindString(text))
		}
		tag = strings.HasPrefix(lines.Text(), ".TP")
	}
	must.OK(t, lines.Err())
	return slices.Compact(slices.DeleteFunc(out, func(s string) bool { return s == "" }))
}

// Each option and setting of the installed release's manuals is drawn, or left out for a reason. Make roots keeps the
// manuals of other releases.
func TestEveryOptionOfTheManualsIsDrawn(t *testing.T) {
	root := os.Getenv("SLURMBRIDGE_TEST_ROOT")
	const jobs = "sbatch(1) srun(1) salloc(1)"
	drawn, left := map[string]bool{}, map[string]bool{}
	note := func(all map[string]bool, page, name string) {
		if strings.Contains(jobs, page) || page == "*" {
			for _, p := range strings.Fields(jobs) {
				all[p+" "+name] = true
			}
		}
		all[page+" "+name] = true
	}
	for _, r := range table {
		note(drawn, r.page, r.option)
	}
	for line := range strings.Lines(leftOutTSV) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if len(f) != 3 {
			t.Fatalf("leftout.tsv: %q", line)
		}
		for _, name := range strings.Fields(f[1]) {
			note(left, f[0], name)
		}
	}
	for page, path := range map[string]string{
		"sbatch(1)": "man1/sbatch.1", "srun(1)": "man1/srun.1", "salloc(1)": "man1/salloc.1",
		"slurm.conf(5)": "man5/slurm.conf.5",
	} {
		t.Run(page, func(t *testing.T) {
			all := manual(t, filepath.Join("/", root, "usr/share/man", path+".gz"), page != "slurm.conf(5)")
			if len(all) < 80 {
				t.Fatalf("the manual explains only %d", len(all))
			}
			for _, name := range all {
				if key := page + " " + name; !drawn[key] && !left[key] {
					t.Errorf("%s is neither drawn nor left out", name)
				} else if drawn[key] && left[key] {
					t.Errorf("%s is drawn and left out", name)
				}
			}
		})
	}
}
