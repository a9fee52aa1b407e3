"""The form on which an order is placed: who orders, and up to three articles."""

from __future__ import annotations

from typing import Any, cast

from django import forms

from shop.models import Product


class CustomerForm(forms.Form):
    """Who orders."""

    customer = forms.CharField(label="Your name", max_length=80)
    email = forms.EmailField(label="E-mail, for the receipt")


class ItemForm(forms.Form):
    """An article and how many pieces of it; without an article the row does not count."""

    sku = forms.CharField(
        label="Article (SKU)",
        max_length=20,
        required=False,
        widget=forms.TextInput(attrs={"list": "articles", "autocomplete": "off"}),
    )
    quantity = forms.IntegerField(label="Pieces", min_value=1, max_value=99, initial=1)

    def clean_sku(self) -> Product | None:
        """Return the article itself."""
        sku = self.cleaned_data["sku"].strip().upper()
        if not sku:
            return None
        try:
            return Product.objects.get(sku=sku)
        except Product.DoesNotExist as error:
            raise forms.ValidationError(f"There is no article {sku}.") from error


class BaseItems(forms.BaseFormSet):  # type: ignore[type-arg]
    """The rows of an order."""

    def clean(self) -> None:
        """Insist on one article at least."""
        if not any(self.errors) and not self.items():
            raise forms.ValidationError("Choose at least one article.")

    def items(self) -> list[tuple[Product, int]]:
        """Return what is ordered, each article once."""
        pieces: dict[Product, int] = {}
        for form in self.forms:
            fields: dict[str, Any] = form.cleaned_data
            if fields.get("sku"):
                pieces[fields["sku"]] = pieces.get(fields["sku"], 0) + fields["quantity"]
        return list(pieces.items())


ItemFormSet = cast(
    type[BaseItems], forms.formset_factory(ItemForm, formset=BaseItems, extra=3, max_num=3)
)
