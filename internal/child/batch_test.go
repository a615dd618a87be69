package child

import "testing"

// TestBatchLine: the rules are those of Rust's standard library, which has the same task (CVE-2024-24576).
func TestBatchLine(t *testing.T) {
	for _, tt := range []struct {
		path string
		args []string
		want string
	}{
		{`C:\Program Files\nodejs\npx.cmd`, []string{"-y", "mcp-remote", "https://h/mcp?a=x&read_only=true"},
			`cmd.exe /e:ON /v:OFF /d /c ""C:\Program Files\nodejs\npx.cmd" "-y" "mcp-remote" "https://h/mcp?a=x&read_only=true""`},
		{`C:\a.bat`, []string{`{"a":"b c"}`, `%PATH%`, `dir\`, `\"`, ""},
			`cmd.exe /e:ON /v:OFF /d /c ""C:\a.bat" "{""a"":""b c""}" "%%cd:~,%PATH%%cd:~,%" "dir\\" "\\""" """`},
	} {
		if got, err := batchLine(tt.path, tt.args); err != nil || got != tt.want {
			t.Errorf("%v\n%s, want\n%s", err, got, tt.want)
		}
	}
	if _, err := batchLine(`C:\a.bat`, []string{"a\nb"}); err == nil {
		t.Error("a line break is passed on")
	}
	for path, want := range map[string]bool{`npx.cmd`: true, `x.BAT`: true, `npx`: false, `a.cmd.exe`: false} {
		if isBatch(path) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}
