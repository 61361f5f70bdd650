package packaging_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// The pages name files, folders and tests that are there.
func TestPagesNameWhatIsThere(t *testing.T) {
	const root = "../.."
	var paths, tests strings.Builder
	var pages []string
	must.OK(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, root)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "build" || d.Name() == ".cache"):
			return fs.SkipDir
		case strings.HasSuffix(name, ".md"):
			pages = append(pages, path)
		case strings.HasSuffix(name, "_test.go"):
			tests.Write(must.Get(os.ReadFile(path))(t))
		}
		paths.WriteString(name + "\n")
		return nil
	}))
	file := regexp.MustCompile("`([a-z0-9_/.-]+\\.go|(?:contrib|slurmbridge|rlcore|gpuprof|prolog|etc)/[A-Za-z0-9_/.-]+)`")
	test := regexp.MustCompile(`\bTest[A-Z][A-Za-z]+`)
	for _, page := range pages {
		if filepath.Base(page) == "CHANGELOG.md" {
			continue // of other days
		}
		text := string(must.Get(os.ReadFile(page))(t))
		for _, m := range file.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(paths.String(), "/"+strings.TrimSuffix(m[1], "/")+"\n") {
				t.Errorf("%s names %s, which isn't there", page, m[1])
			}
		}
		for _, name := range test.FindAllString(text, -1) {
			if !strings.Contains(tests.String(), "func "+name) { // or several that begin so
				t.Errorf("%s names %s, which isn't there", page, name)
			}
		}
	}
	if len(pages) < 5 {
		t.Errorf("only %d pages: %q", len(pages), pages)
	}
}
