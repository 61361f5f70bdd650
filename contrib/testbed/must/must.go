// Package must keeps the errors that a test doesn't expect out of its way.
package must

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// T is a test, a benchmark, a fuzz test or a property's check.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// Get returns the value of a call, must.Get(f())(t), and ends the test if the call fails.
func Get[V any](v V, err error) func(T) V {
	return func(t T) V {
		t.Helper()
		OK(t, err)
		return v
	}
}

// Err returns the error of a call that also returns a value, must.Err(f()).
func Err[V any](_ V, err error) error { return err }

// List returns what a sequence has, and ends the test at its first error.
func List[V any](t T, seq iter.Seq2[V, error]) []V {
	t.Helper()
	var all []V
	for v, err := range seq {
		OK(t, err)
		all = append(all, v)
	}
	return all
}

// OK ends the test at the first error.
func OK(t T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Equal fails the test, which goes on, if two values differ in depth; nil and empty are the same. What they are of may
// be given as a value, or as a format and its values.
func Equal[V any](t T, got, want V, of ...any) {
	t.Helper()
	a, b := reflect.ValueOf(got), reflect.ValueOf(want)
	if reflect.DeepEqual(got, want) || empty(a) && empty(b) {
		return
	}
	if a.Kind() == reflect.String {
		t.Errorf("%sgot %q, want %q", about(of), a, b)
		return
	}
	t.Errorf("%sgot %+v, want %+v", about(of), got, want)
}

// Near fails the test, which goes on, if two numbers differ by more than a bound, or one isn't a number.
func Near(t T, got, want, bound float64, of ...any) {
	t.Helper()
	if !(math.Abs(got-want) <= bound) {
		t.Errorf("%sgot %v, want %v ± %v", about(of), got, want, bound)
	}
}

// Contain fails the test, which goes on, if a text lacks a part.
func Contain(t T, text, part string, of ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s%q isn't in %q", about(of), part, text)
	}
}

// Is fails the test, which goes on, if errors.Is doesn't find the wanted error.
func Is(t T, err, want error, of ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%sgot error %v, want %v", about(of), err, want)
	}
}

// Fail fails the test, which goes on, if there is no error, or its text lacks a part.
func Fail(t T, err error, part string, of ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("%sgot error %v, want %q in it", about(of), err, part)
	}
}

// about is what a check is of: a value, or a format and its values.
func about(of []any) string {
	switch len(of) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%+v: ", of[0])
	}
	return fmt.Sprintf(fmt.Sprint(of[0]), of[1:]...) + ": "
}

func empty(v reflect.Value) bool {
	return (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0
}

// OwnMounts runs the test once more, as a process with a mount namespace of its own, and returns true there: nothing
// else sees its mounts. It skips the test where that takes more rights.
func OwnMounts(t *testing.T) bool {
	t.Helper()
	const variable = "TEST_WITH_OWN_MOUNTS"
	if os.Getenv(variable) == t.Name() {
		OK(t, syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, syscall.EPERM), strings.Contains(string(out), "--- SKIP"):
		t.Skip("needs root")
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	}
	return false
}
