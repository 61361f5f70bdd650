package contrib

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// reference is what a comment sends its reader to: "see job.Terms.Retry", "see rules.go".
var reference = regexp.MustCompile(`\bsee ([A-Za-z]\w*(?:\.[A-Za-z]\w*)*)`)

// What a comment says to see is there: a file of its folder, or names that its package, or the one named, declares.
func TestReferencesOfCommentsResolve(t *testing.T) {
	t.Parallel()
	files, declared, byName := map[string]*ast.File{}, map[string]map[string]bool{}, map[string]map[string]bool{}
	must.OK(t, filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			if e.IsDir() && (e.Name() == "build" || e.Name() == ".cache" || e.Name() == "testdata") {
				return filepath.SkipDir
			}
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		if declared[dir] == nil {
			declared[dir] = map[string]bool{}
		}
		files[path], byName[f.Name.Name] = f, declared[dir]
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				declared[dir][n.Name.Name] = true
			case *ast.TypeSpec:
				declared[dir][n.Name.Name] = true
			case *ast.ValueSpec:
				for _, name := range n.Names {
					declared[dir][name.Name] = true
				}
			case *ast.Field:
				for _, name := range n.Names {
					declared[dir][name.Name] = true
				}
			}
			return true
		})
		return nil
	}))
	n := 0
	for path, f := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		var text strings.Builder
		for _, c := range f.Comments {
			text.WriteString(c.Text() + "\n")
		}
		for _, m := range reference.FindAllStringSubmatch(text.String(), -1) {
			names, of := strings.Split(m[1], "."), declared[filepath.Dir(path)]
			if names[len(names)-1] == "go" {
				if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
					t.Errorf("%s: see %s: no such file", path, m[1])
				}
				continue
			}
			if last := names[len(names)-1]; last == "md" || len(names) == 1 && last[1:] == strings.ToLower(last[1:]) {
				continue // a page, or a word of a sentence
			}
			n++
			if byName[names[0]] != nil && len(names) > 1 {
				names, of = names[1:], byName[names[0]]
			}
			for _, name := range names {
				if !of[name] {
					t.Errorf("%s: see %s: there is no %s", path, m[1], name)
				}
			}
		}
	}
	if n < 30 {
		t.Errorf("only %d references were found", n)
	}
}
