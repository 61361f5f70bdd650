package packaging_test

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cpuguy83/go-md2man/v2/md2man"

	"github.com/slurmbridge/slurmbridge/contrib/packaging/manpage/mantest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

const root = "../.."

// TestManualOfUsersAndSettings writes the manual pages that no command's help is: for users, and of settings, which
// have all that their sources say.
func TestManualOfUsersAndSettings(t *testing.T) {
	pages := map[string]string{}
	page := func(name, section, short, source, also string, body func(text string) (string, error)) {
		dir, when := mantest.Target(t)
		text := fmt.Sprintf("%% %q %q %q %q %q\n\n# NAME\n%s - %s\n\n%s\n# SEE ALSO\n%s\n",
			strings.ToUpper(name), section, when.Format("Jan 2006"), "slurmbridge", "slurmbridge", name, short,
			must.Get(body(string(must.Get(os.ReadFile(filepath.Join(root, source)))(t))))(t), also)
		roff := md2man.Render([]byte(text))
		must.OK(t, os.WriteFile(filepath.Join(dir, name+"."+section), roff, 0o600))
		pages[name+"."+section] = string(roff)
	}
	page("slurmbridge", "7", "share a GPU with other jobs", "contrib/doc/users.md",
		"**slurmbridge**(8), **sbatch**(1), /usr/share/doc/slurmbridge", guide)
	for _, p := range [][4]string{
		{"slurmbridge.yaml", "slurmbridge.yaml", "settings of slurmbridge", "**slurmbridge**(8)"},
		{"gpuprof.yaml", "gpuprof.yaml", "settings of gpuprof", "**gpuprof**(8)"},
		{"slurmbridge-node.yaml", "node.yaml", "settings of a node's hooks", "**slurmbridge-hook**(8)"},
	} {
		page(p[0], "5", p[2]+", /etc/slurmbridge/"+p[1], "etc/"+p[1], p[3], settings)
	}
	for _, setting := range []string{"slurm_conf: (empty)", "listen: :9797"} {
		must.Contain(t, pages["slurmbridge.yaml.5"], "\n.SS "+setting+"\n", "slurmbridge.yaml.5")
	}
	words := regexp.MustCompile(`[a-zA-Z0-9_./:=-]{3,}`)
	for page, source := range map[string]string{
		"slurmbridge.7": "contrib/doc/users.md", "slurmbridge.yaml.5": "etc/slurmbridge.yaml",
		"gpuprof.yaml.5": "etc/gpuprof.yaml", "slurmbridge-node.yaml.5": "etc/node.yaml",
	} {
		roff := pages[page]
		for _, section := range []string{".SH NAME", ".SH DESCRIPTION", ".SH SEE ALSO"} {
			must.Contain(t, roff, section+"\n", page)
		}
		must.Equal(t, regexp.MustCompile("```|\\*\\*|\\]\\(|\\\\_|(?m:^#)").FindString(roff), "", "Markdown in %s", page)
		plain := strings.NewReplacer(`\-`, "-", `\_`, "_", `\&`, "", `\.`, ".", `\(aq`, "'").Replace(
			regexp.MustCompile(`\\f(\[\w*\]|\w)`).ReplaceAllString(roff, ""))
		text := string(must.Get(os.ReadFile(filepath.Join(root, source)))(t))
		if strings.HasSuffix(source, ".md") { // but for links, names of blocks and the title
			text = regexp.MustCompile(`\]\([^)]*\)|(?m)^`+"```sh.*|^# .*").ReplaceAllString(text, " ")
		}
		for _, word := range words.FindAllString(text, -1) {
			must.Contain(t, plain, strings.Trim(word, "-.:"), "%s, made of %s", page, source)
		}
	}
	must.Fail(t, must.Err(settings("# head\n\nmode: active\n")), "", "a setting without a comment")
}

var setting = regexp.MustCompile(`^([a-z_]+): (.+)$`)

// settings makes a page of a file in YAML: its first comment, and each setting with its default and the comment above
// it.
func settings(text string) (string, error) {
	head, rest, _ := strings.Cut(text, "\n\n")
	uncommented := regexp.MustCompile(`(?m)^# ?`)
	out := "# DESCRIPTION\n" + mantest.Markdown(uncommented.ReplaceAllString(head, "")) + "\n# SETTINGS\n"
	said := ""
	for line := range strings.Lines(rest) {
		line = strings.TrimRight(line, "\n")
		m := setting.FindStringSubmatch(line)
		switch {
		case line == "":
		case strings.HasPrefix(line, "#"):
			said += uncommented.ReplaceAllString(line, "") + "\n"
		case m == nil || said == "":
			return "", fmt.Errorf("it is no setting with a comment: %q", line)
		default:
			value := cmp.Or(strings.Trim(m[2], `"`), "(empty)") // roff would take the quotes as its own
			out += "\n### " + mantest.Escape(m[1]+": "+value) + "\n" + mantest.Markdown(said)
			said = ""
		}
	}
	return out, nil
}

// guide makes a page of one in Markdown: links are their text, commands stand without their names.
func guide(text string) (string, error) {
	title, rest, ok := strings.Cut(text, "\n")
	if !ok || !strings.HasPrefix(title, "# ") {
		return "", fmt.Errorf("it begins with %q, not with a title", title)
	}
	for _, r := range []struct{ from, to string }{
		{`(?m)^## (.*)$`, "# $1"}, {"(?m)^```sh .*$", "```"}, {`\[([^\]]*)\]\([^)]*\)`, "$1"},
	} {
		rest = regexp.MustCompile(r.from).ReplaceAllString(rest, r.to)
	}
	return "# DESCRIPTION\n" + rest, nil
}

// outside reports folders that aren't the project's sources.
func outside(d fs.DirEntry) bool {
	return d.IsDir() && (d.Name() == ".git" || d.Name() == "build" || d.Name() == ".cache")
}

// anchors are the names by which links lead to a page's headings, as GitHub makes them.
func anchors(text string) string {
	out := "\n"
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		out += strings.ReplaceAll(name, " ", "-") + "\n"
	}
	return out
}

// broken returns the links of a page, in the folder dir, that lead to no file or to no heading of one.
func broken(dir, text string) (bad []string) {
	for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
		file, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(file, "://") {
			continue
		}
		to := text
		if file != "" {
			b, err := os.ReadFile(filepath.Join(dir, file))
			if _, serr := os.Stat(filepath.Join(dir, file)); serr != nil || err != nil && anchor != "" {
				bad = append(bad, m[1])
				continue
			}
			to = string(b)
		}
		if anchor != "" && !strings.Contains(anchors(to), "\n"+anchor+"\n") {
			bad = append(bad, m[1])
		}
	}
	return bad
}

// Links between pages lead to files and headings that are there, and so does what sources say of a page and its
// heading.
func TestPagesLinkToWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "a.md"), []byte("# A\n## What can't it do?\n"), 0o600))
	const text = "[x](a.md) [x](a.md#what-cant-it-do) [x](https://b/c) [x](b.md) [x](a.md#b) [x](#a)"
	must.Equal(t, broken(dir, text), []string{"b.md", "a.md#b", "#a"})
	said := regexp.MustCompile(`contrib/doc/([a-z-]+\.md), "([^"]+)"`) // as comments of Go and shell name a heading
	links, headings := 0, 0
	must.OK(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || outside(d) || !d.Type().IsRegular() {
			if err == nil && outside(d) {
				return fs.SkipDir
			}
			return err
		}
		text := string(must.Get(os.ReadFile(path))(t))
		if strings.HasSuffix(path, ".md") {
			for _, link := range broken(filepath.Dir(path), text) {
				t.Errorf("%s: %s leads nowhere", path, link)
			}
			links += strings.Count(text, "](")
		}
		if strings.HasSuffix(path, ".go") || strings.HasPrefix(text, "#!/bin/sh") {
			for _, m := range said.FindAllStringSubmatch(text, -1) {
				page := must.Get(os.ReadFile(filepath.Join(root, "contrib/doc", m[1])))(t)
				must.Contain(t, string(page), "\n## "+m[2]+"\n", "%s: a heading of %s", path, m[1])
				headings++
			}
		}
		return nil
	}))
	if links < 20 || headings < 2 {
		t.Errorf("only %d links and %d names of headings were tried", links, headings)
	}
}

// README.md is what a newcomer reads in one go; the rest stands in pages.
func TestREADMEIsShort(t *testing.T) {
	if n := strings.Count(string(must.Get(os.ReadFile(filepath.Join(root, "README.md")))(t)), "\n"); n > 150 {
		t.Errorf("it has %d lines: what is more than 150 belongs into contrib/doc", n)
	}
}

// The pages' blocks of commands, "```sh WHERE NAME", have the same commands wherever they stand, and acceptance runs each.
func TestPagesCanBeFollowed(t *testing.T) {
	steps := string(must.Get(os.ReadFile(filepath.Join(root, "contrib/testbed/acceptance/steps")))(t))
	commands := map[string]string{}
	pages := append(must.Get(filepath.Glob(filepath.Join(root, "contrib/doc/*.md")))(t), filepath.Join(root, "README.md"))
	for _, page := range pages {
		parts := strings.Split("\n"+string(must.Get(os.ReadFile(page))(t)), "\n```")
		for i := 1; i < len(parts); i += 2 {
			head, text, _ := strings.Cut(parts[i], "\n")
			name, is := strings.CutPrefix(head, "sh ")
			if was, twice := commands[name]; !is || len(parts)%2 == 0 || twice && was != text || strings.TrimSpace(text) == "" ||
				!regexp.MustCompile(`(follow|block) `+name+`\b`).MatchString(steps) {
				t.Errorf("%s: nothing follows %q, or it has other commands elsewhere", page, head)
			}
			commands[name] = text
		}
	}
	if len(commands) < 10 {
		t.Errorf("the pages have %d blocks of commands only", len(commands))
	}
}

// What the pages call a setting is one, of one of the files of settings, of the playbook or of its role.
func TestPagesNameSettings(t *testing.T) {
	settings := string(must.Get(os.ReadFile(filepath.Join(root, "contrib/ansible/slurmbridge.yml")))(t))
	settings += string(must.Get(os.ReadFile(filepath.Join(root, "contrib/ansible/roles/slurmbridge/defaults/main.yml")))(t))
	for _, file := range must.Get(filepath.Glob(filepath.Join(root, "etc/*.yaml")))(t) {
		settings += string(must.Get(os.ReadFile(file))(t))
	}
	n := 0
	named := regexp.MustCompile("`([a-z]+_[a-z_]+)(:[^`]*)?`")
	pages := append(must.Get(filepath.Glob(filepath.Join(root, "contrib/doc/*.md")))(t), filepath.Join(root, "README.md"))
	for _, page := range pages {
		if filepath.Base(page) == "json.md" {
			continue // it names fields
		}
		for _, m := range named.FindAllStringSubmatch(string(must.Get(os.ReadFile(page))(t)), -1) {
			n++
			must.Contain(t, settings, m[1], "a setting of %s", page)
		}
	}
	if n < 15 {
		t.Errorf("only %d settings are named", n)
	}
}

// The pages name files, folders and tests that are there.
func TestPagesNameWhatIsThere(t *testing.T) {
	var paths, tests strings.Builder
	var pages []string
	must.OK(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, root)
		switch {
		case err != nil:
			return err
		case outside(d):
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
			must.Contain(t, paths.String(), "/"+strings.TrimSuffix(m[1], "/")+"\n", "a file that %s names", page)
		}
		for _, name := range test.FindAllString(text, -1) {
			must.Contain(t, tests.String(), "func "+name, "a test, or the begin of several, that %s names", page)
		}
	}
	if len(pages) < 5 {
		t.Errorf("only %d pages: %q", len(pages), pages)
	}
}
